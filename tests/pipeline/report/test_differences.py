"""Differences between two reports, against histories with a known one."""

import numpy as np
import pandas as pd
import pytest
from purgatory_pipeline.page import document
from purgatory_pipeline.page.parts import PageTable
from purgatory_pipeline.report.differences import ESTIMATED, Frames, compare_page, differences

from tests.pipeline.page.page_frames import report_frames

WINDOWS = 40


def drawn_groups(seed: int, keys: int, expiry_rate: float = 0.05, burst: int = 50) -> pd.DataFrame:
    """Windows in which `burst` waits of a topic always end the same way, as one event ends them all."""
    random = np.random.default_rng(seed)
    found = []
    for key in range(keys):
        bursts = random.poisson(20, WINDOWS) + 1
        expired = burst * random.binomial(bursts, expiry_rate)
        ended = burst * bursts
        found.append(
            pd.DataFrame({"window_start": pd.date_range("2026-07-01", periods=WINDOWS, freq="1h", tz="UTC")})
            .assign(topic=f"topic-{key}", kind="produce", principal="", partition=0, registered=ended, ended=ended)
            .assign(expired=expired, satisfied=ended - expired, waited_total_ms=ended * 20 + expired * 80)
        )
    return pd.concat(found, ignore_index=True)  # fmt: skip


def compared(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    tables: Frames = report_frames()
    rows = differences({**tables, "groups": before}, {**tables, "groups": after})
    return rows[rows["table"] == "topics"]


def test_bounds_contain_no_difference_in_nineteen_of_twenty() -> None:
    """Two histories of the same process, whose waits end fifty at a time, differ clearly in 5 % of the figures."""
    rows = compared(drawn_groups(1, 100), drawn_groups(2, 100))
    assert len(rows) == 400
    assert rows["low"].notna().all()
    assert 0.02 <= rows["clear"].mean() <= 0.08


def test_twice_the_expiries_are_a_clear_difference() -> None:
    rows = compared(drawn_groups(3, 20), drawn_groups(4, 20, expiry_rate=0.1))
    rates = rows[rows["measure"] == "expiry_rate"]
    assert (rates["clear"] & (rates["low"] > 0)).all()
    assert rates["difference"].mean() == pytest.approx(0.05, abs=0.01)


def test_few_windows_have_no_bounds() -> None:
    few = drawn_groups(5, 2)
    assert (
        compared(few, few[few["window_start"] < few["window_start"].min() + pd.Timedelta(hours=4)])["low"].isna().all()
    )


def test_every_table_is_compared_with_itself() -> None:
    """A report does not differ from itself; estimates have bounds that contain 0; the page shows every table."""
    groups = drawn_groups(6, 3)
    tables: Frames = {**report_frames(), "groups": groups}
    rows = differences(tables, tables)
    assert (rows["difference"].dropna() == 0).all()
    assert not rows["clear"].any()
    estimates = rows[rows["measure"].isin(["expires", "timeout_expires", "share"])].dropna()
    assert ((estimates["low"] <= 0) & (estimates["high"] >= 0)).all()
    page = compare_page(rows, "a", "b@2026-07-01..")
    (table,) = page.sections[0].parts
    assert isinstance(table, PageTable)
    assert set(table.frame["table"]) == {"topics", "principals", "partitions", *ESTIMATED}
    assert document.render(page).endswith("</html>\n")
