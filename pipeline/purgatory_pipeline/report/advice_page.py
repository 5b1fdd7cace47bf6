"""What `advise` found, as a page."""

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import KIND, Headline, Page, PageColumn, PageTable, Section, columns


def advice_page(advised: pd.DataFrame, subtitle: Markup, slo: str, different: int) -> Page:
    """The page, from the rows of `advise_timeouts`; `different` operations did not end as recorded."""
    days = zip(advised["is_met"], advised["days_met"], advised["days"], strict=True)
    table = PageTable(
        "Smallest timeouts that meet the objective on each day",
        advised.assign(met=[f"{days_met:.0f} of {all_days}" if met else "no" for met, days_met, all_days in days]),
        (
            KIND,
            PageColumn("topic", "topic", lambda name: wording.name(name) if name else "(keys)"),
            PageColumn("principal", "principal", lambda name: wording.name(name) if name else "(not authenticated)"),
            *columns(wording.count, "operations"),
            *columns(wording.milliseconds, timeout_ms="timeout most in use"),
            *columns(wording.share, expired_share="expired"),
            *columns(wording.milliseconds, advised_ms="advised"),
            *columns(wording.share, advised_expired_share="expire then"),
            *columns(wording.milliseconds, waited_mean_ms="mean wait", advised_waited_mean_ms="mean wait then"),
            PageColumn("met", "days on which it is met"),
        ),
        rest="timeouts.csv",
        rows_max=200,
    )
    lead = (
        "Two replays through the engine of the daemon decide. The first has no timeouts and shows when each operation "
        "would have ended by itself. The second has the advised timeouts and shows which operations expire."
    )
    notice = f"Replayed unchanged, {wording.count(different)} operations did not end as recorded: do not rely on this."
    met = int(advised["is_met"].sum())
    return Page(
        title="Purgatory timeouts",
        subtitle=subtitle,
        headlines=(Headline(f"{slo} do not expire", f"{met} of {len(advised)}", "kinds, topics and principals"),),
        account=None,
        findings=(),
        notices=(notice,) if different else (),
        sections=(Section("timeouts", "Timeouts", (lead,), (table,)),),
    )
