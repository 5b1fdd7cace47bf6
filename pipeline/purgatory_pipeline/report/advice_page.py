"""What `advise` found, as a page; and a report's section on the error budget of an objective."""

from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import CLIENT, KIND, Finding, Headline, Page, PageColumn, PageTable, Section, columns
from purgatory_pipeline.report.advice import ADVISED_MIN

GROUP: Final = (
    KIND,
    PageColumn("topic", "topic", lambda topic: wording.name(topic) if topic else "all signals"),
    CLIENT,
)


def advice_page(advised: pd.DataFrame, subtitle: Markup, slo: str, different: int) -> Page:
    """The page, from the rows of `advise_timeouts`; `different` operations did not end as recorded."""
    days = zip(advised["is_met"], advised["days_met"], advised["days"], strict=True)
    table = PageTable(
        "Smallest timeouts that meet the objective on each day",
        advised.assign(met=[f"{days_met:.0f} of {all_days}" if met else "no" for met, days_met, all_days in days]),
        (
            *GROUP,
            *columns(wording.count, "operations"),
            *columns(wording.milliseconds, timeout_ms="timeout most in use"),
            *columns(wording.share, expired_share="expired"),
            *columns(wording.milliseconds, advised_ms="advised"),
            *columns(wording.share, advised_expired_share="expire then"),
            *columns(wording.milliseconds, waited_mean_ms="mean wait", advised_waited_mean_ms="mean wait then"),
            *columns(wording.text, met="days on which it is met"),
        ),
        rest="timeouts.csv",
        rows_max=200,
    )
    lead = (
        "Two replays through the engine of the daemon decide. The first has no timeouts and shows when each operation "
        "would have ended by itself. The second has the advised timeouts and shows which operations expire."
    )
    notice = (
        f"Replayed unchanged, {wording.plural(different, 'operation')} did not end as recorded: do not rely on this."
    )
    met = int(advised["is_met"].sum())
    return Page(
        title="Purgatory timeouts",
        subtitle=subtitle,
        headlines=(Headline(f"{slo} do not expire", f"{met} of {len(advised)}", "kinds, topics and clients"),),
        findings=(),
        notices=(notice,) if different else (),
        sections=(Section("timeouts", "Timeouts", (lead,), (table,)),),
    )


def budget_section(budget: pd.DataFrame, objective: float | None) -> tuple[Section, ...]:
    """Nothing without an objective."""
    if objective is None:
        return ()
    whole, days = budget[budget["day"].isna()], budget[budget["day"].notna()]
    by_group = days.assign(beyond=days["burnt"] > 1).groupby([column.key for column in GROUP], as_index=False)
    by_day = by_group.agg(worst=("burnt", "max"), beyond=("beyond", "sum"), days=("beyond", "size"))
    rows = whole.merge(by_day, how="left")
    lead = (
        f"The objective is that {wording.share_in_sentence(objective)} do not expire, of each kind, topic and client; "
        f"the error budget is the rest, {wording.share_in_sentence(1 - objective)}. Failed and cancelled operations "
        "have not expired. An operation belongs to the day (UTC) on which it ended."
    )
    table = PageTable(
        "Error budget burnt (100 %: all of it)",
        rows.assign(
            over=[" of ".join(map(wording.count, pair)) for pair in zip(rows["beyond"], rows["days"], strict=True)]
        ),
        (
            *GROUP,
            *columns(wording.count, "operations", "expired"),
            *columns(wording.share, burnt="budget burnt", worst="on the worst day"),
            *columns(wording.as_is, over="days beyond the budget"),
        ),
        rest="csv/budget.csv",
    )
    return (Section("budget", "Error budget", (lead,), (table,)),)


def budget_finding(budget: pd.DataFrame, objective: float | None) -> list[Finding]:
    """The largest budget burnt, if it is more than all of it, and how many others are."""
    over = budget[budget["day"].isna() & (budget["burnt"] > 1) & (budget["operations"] >= ADVISED_MIN)]
    if objective is None or over.empty:
        return []
    first = over.iloc[0]
    sentence = Markup("{1} ({0}, {2}) burnt {3} of its error budget: {4} expired, and {5} may.").format(
        *(column.shown(first[column.key]) for column in GROUP),
        wording.strong(wording.share_in_sentence(first["burnt"])),
        *(wording.share_in_sentence(share) for share in (first["expired"] / first["operations"], 1 - objective)),
    )
    others = wording.plural(len(over) - 1, "other is", "others are")
    return [Finding(sentence + (f" {others} beyond their budgets." if len(over) > 1 else ""), "budget")]
