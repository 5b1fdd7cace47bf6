"""Anomalies against drawn histories: a load that follows hours and weekdays, with one change that is known."""

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from purgatory_pipeline.report.anomalies import anomalies

HOUR_MS = 3_600_000
FIRST_DAY = 20_000
"""A Wednesday."""
KINDS = ("produce", "fetch")
FOUND_WITHOUT_CHANGE_MAX = 2
Factors = NDArray[np.float64] | float


def drawn_windows(days: int, seed: int, waits: Factors = 1.0, load: Factors = 1.0) -> pd.DataFrame:
    """Hourly windows of all topics together, with weekends at a third of the load; `waits` and `load` are factors."""
    random = np.random.default_rng(seed)
    hour = np.arange(days * 24)
    is_weekend = np.isin((FIRST_DAY + hour // 24) % 7, (2, 3))
    found = []
    for kind in KINDS:
        usual = 2_000 * (1 + 0.5 * np.sin(hour / 24 * 2 * np.pi)) * np.where(is_weekend, 1 / 3, 1) * load
        count = random.poisson(usual * np.exp(random.normal(0, 0.1, len(hour))))
        expired = random.binomial(count, 0.02)
        level_ms = 100 * waits * np.exp(random.normal(0, 0.05, len(hour)))
        waited = {f"wait_{name}_ms": np.rint(factor * level_ms) for name, factor in (("p50", 1), ("p99", 4))}
        counts = {"registered": count, "ended": count, "expired": expired, "satisfied": count - expired}
        found.append(pd.DataFrame({"window": FIRST_DAY * 24 + hour, "topic": None, "kind": kind, **counts, **waited}))
    return pd.concat(found)


def found_in(windows: pd.DataFrame) -> pd.DataFrame:
    return anomalies(windows, HOUR_MS).to_pandas()


@pytest.mark.parametrize("weeks", [3, 4, 6])
def test_weekends_are_no_anomalies(weeks: int) -> None:
    """Of all windows of three weeks and more whose weekends have a third of the load, nearly none is reported."""
    for seed in range(8):
        assert len(found_in(drawn_windows(7 * weeks, seed))) <= FOUND_WITHOUT_CHANGE_MAX


@pytest.mark.parametrize("weeks", [3, 4])
def test_an_hour_of_twice_the_load_is_the_first_anomaly(weeks: int) -> None:
    """It is found in each week, on its own, and the same hours of other weeks are not."""
    for day in (1, 8, 11, 7 * weeks - 2):
        odd = 24 * day + 10
        odd_load = np.where(np.arange(7 * weeks * 24) == odd, 2.5, 1.0)
        rows = found_in(drawn_windows(7 * weeks, day, load=odd_load))
        loads = rows[rows["measure"] == "registered"].head(2)
        assert loads["direction"].tolist() == ["up", "up"]
        assert set(loads["window_start"]) == {pd.Timestamp((FIRST_DAY * 24 + odd) * HOUR_MS, unit="ms", tz="UTC")}
        assert len(rows) <= 2 + FOUND_WITHOUT_CHANGE_MAX


@pytest.mark.parametrize("days", [14, 15, 28])
def test_a_drift_is_a_shift_of_each_kind(days: int) -> None:
    """Waits that become 1.4 times as long within the last two weeks are found for any seed; nothing else shifts."""
    drift = 1.4 ** np.maximum(0, np.arange(days * 24) / 336 - days / 14 + 1)
    for seed in range(8):
        rows = found_in(drawn_windows(days, seed, waits=drift))
        shifts = rows[rows["basis"] == "shift"]
        assert sorted(zip(shifts["measure"], shifts["kind"], strict=True)) == [
            (measure, kind) for measure in ("wait_p50_ms", "wait_p99_ms") for kind in sorted(KINDS)
        ]
        assert (shifts["direction"] == "up").all()
        assert (shifts["value"] / shifts["usual"]).between(1.1, 1.4).all()


@pytest.mark.parametrize(("days", "changed"), [(14, 5), (14, 9), (21, 12), (28, 20)])
def test_a_step_is_found_on_its_day(days: int, changed: int) -> None:
    for seed in range(4):
        rows = found_in(drawn_windows(days, seed, waits=np.where(np.arange(days * 24) >= 24 * changed, 1.5, 1.0)))
        shifts = rows[(rows["basis"] == "shift") & (rows["measure"] == "wait_p50_ms")]
        assert shifts["direction"].tolist() == ["up"] * len(KINDS)
        off = shifts["window_start"] - pd.Timestamp(FIRST_DAY + changed, unit="D", tz="UTC")
        assert (off.abs() <= pd.Timedelta(days=1)).all()


def test_without_change_nothing_shifts() -> None:
    for seed in range(20):
        assert (found_in(drawn_windows(14, seed))["basis"] != "shift").all()
