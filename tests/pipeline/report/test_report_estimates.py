"""Estimates of the report: quantiles of counts, curves against the textbook and against known truths, and the answers
read from them. `test_report_tables` compares all other figures with SQL.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.report import estimates
from purgatory_pipeline.report.estimates import Curve, Floats, Ints, cluster_variances, estimate, quantiles, widened

Ended = list[tuple[int, bool]]
"""Operations: how long each waited, and whether it was satisfied."""

ENDED = st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=80)


def curve_of(ended: Ended) -> Curve:
    waited = sorted({waited for waited, _ in ended})
    counts = [[sum(1 for end in ended if end == (at, done)) for at in waited] for done in (True, False)]
    return estimate(np.array(waited), [np.array(counts[0])], np.array(counts[1]))


def textbook(ended: Ended, at_ms: int) -> tuple[Fraction, Fraction]:
    """The share that needs longer than `at_ms`, and Greenwood's sum: by definition, one time after the other."""
    share, greenwood = Fraction(1), Fraction(0)
    for time in sorted({waited for waited, done in ended if done and waited <= at_ms}):
        at_risk = sum(1 for waited, _ in ended if waited >= time)
        deaths = sum(1 for waited, done in ended if done and waited == time)
        share *= Fraction(at_risk - deaths, at_risk)
        if deaths < at_risk:
            greenwood += Fraction(deaths, at_risk * (at_risk - deaths))
    return share, greenwood


@given(ENDED)
def test_curve_is_the_textbooks(ended: Ended) -> None:
    """Share, number at risk and bounds are those of the definition, at each time waited."""
    curve = curve_of(ended)
    for place, at_ms in enumerate(curve.waited_ms.tolist()):
        share, greenwood = textbook(ended, at_ms)
        assert curve.at_risk[place] == sum(1 for waited, _ in ended if waited >= at_ms)
        assert curve.waiting[place] == pytest.approx(float(share), abs=1e-12)
        if share == 0:
            assert np.isnan(curve.low[place])
            assert np.isnan(curve.high[place])
        elif share == 1:
            assert (curve.low[place], curve.high[place]) == (1, 1)
        else:
            width = estimates.Z * math.sqrt(greenwood) / abs(math.log(share))
            assert curve.low[place] == pytest.approx(float(share) ** math.exp(width), abs=1e-9)
            assert curve.high[place] == pytest.approx(float(share) ** math.exp(-width), abs=1e-9)


@given(ENDED, st.integers(0, 40))
def test_share_that_expires(ended: Ended, timeout_ms: int) -> None:
    """The answer for a timeout is the curve's value there, or none where too few were seen; within its bounds."""
    curve = curve_of(ended)
    said = curve.expires(timeout_ms)
    share, _ = textbook(ended, timeout_ms)
    seen = [waited for waited in {waited for waited, _ in ended} if sum(1 for w, _ in ended if w >= waited) >= 10]
    assert curve.seen_until_ms == max(seen, default=0)
    if seen and (timeout_ms <= max(seen) or share == 0):
        assert said.value == pytest.approx(float(share), abs=1e-12)
    else:
        assert said.value is None
    assert 0 <= said.low <= said.high <= 1
    if said.value is not None:
        assert said.low <= said.value + 1e-12
        assert said.value <= said.high + 1e-12


@given(ENDED, st.sampled_from([0.5, 0.9, 0.99]))
def test_what_a_share_needs(ended: Ended, share: float) -> None:
    """A quantile is the first time at which no more than the rest still waits, if enough were seen until then."""
    curve = curve_of(ended)
    value, low, high = curve.need_ms(share)
    reached = [
        at_ms
        for at_ms in curve.waited_ms.tolist()
        if textbook(ended, at_ms)[0] <= 1 - Fraction(str(share)) and sum(1 for w, _ in ended if w >= at_ms) >= 10
    ]
    assert value == min(reached, default=None)
    if value is not None:
        assert low is not None
        assert low <= value
    if high is not None:
        assert value is not None
        assert value <= high


def test_known_example() -> None:
    """The remission times of 6-MP patients (Freireich 1963): shares and standard errors as in every textbook."""
    done = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    lost = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    curve = curve_of([*((time, True) for time in done), *((time, False) for time in lost)])
    shares = dict(zip(curve.waited_ms.tolist(), curve.waiting.tolist(), strict=True))
    assert [round(shares[time], 3) for time in (6, 7, 10, 13, 16, 22, 23)] == [
        0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448,
    ]  # fmt: skip
    low, high = (bound[curve.waited_ms.tolist().index(23)] for bound in (curve.low, curve.high))
    assert (round(low, 3), round(high, 3)) == (0.188, 0.680)


def test_all_done_long_before_a_timeout() -> None:
    curve = curve_of([(need, True) for need in range(1, 101)])
    said = curve.expires(30_000)
    assert (said.value, said.low) == (0.0, 0.0)
    assert 0 < said.high < 0.2


def test_shown_points_are_few_and_end_with_the_last() -> None:
    waited = np.arange(100_000)
    curve = estimate(waited, [np.full(len(waited), 3)], np.ones(len(waited), dtype=np.int64))
    shown = curve.shown()
    assert 100 < len(shown) < 600
    assert (shown[0], shown[-1]) == (0, len(waited) - 1)
    assert np.abs(np.diff(curve.waiting[shown])).max() < 0.02


def counted(waited: Floats, ends: list[Flags], entered: Floats | None = None, clusters: Ints | None = None) -> Curve:
    """The curve of operations that left after `waited`, each with one of the `ends` or censored."""
    times = np.unique(np.concatenate([waited, [] if entered is None else entered]).astype(np.int64))

    def count(values: Floats) -> Ints:
        return np.bincount(np.searchsorted(times, values), minlength=len(times))

    censored = count(waited[~np.any(ends, axis=0)])
    counts = [count(waited[end]) for end in ends]
    curve = estimate(times, counts, censored, None if entered is None else count(entered))
    if clusters is None:
        return curve
    variances = cluster_variances(curve, waited.astype(np.int64), np.any(ends, axis=0), clusters)
    return estimate(times, counts, censored, None, widened(curve, variances))


@pytest.mark.slow  # 200 scenarios
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_the_timeout_in_use_expires_what_expired(seed: int) -> None:
    """Failures and cancellations compete with success. With one timeout the estimate is the observed share, and the
    shares of a shorter one are the true ones; together they are 1.
    """
    rng = np.random.default_rng(seed)
    timeout_ms, mean_ms = int(rng.integers(20, 200)), rng.uniform(5, 300, 3)
    ends_ms = np.ceil(rng.exponential(mean_ms, (500, 3)))
    first, need_ms = ends_ms.argmin(axis=1), ends_ms.min(axis=1)
    in_time = need_ms <= timeout_ms
    curve = counted(np.minimum(need_ms, timeout_ms), [in_time & (first == cause) for cause in range(3)])
    for shorter_ms in (timeout_ms, timeout_ms // 2):
        said = curve.expires(shorter_ms).value
        if said is None:  # fewer than ten waited this long
            assert (need_ms > shorter_ms).sum() < estimates.AT_RISK_MIN
            continue
        assert said == pytest.approx((need_ms > shorter_ms).mean(), abs=1e-9)
        assert curve.shares_ended(shorter_ms) == pytest.approx(
            [((need_ms <= shorter_ms) & (first == cause)).mean() for cause in range(3)], abs=1e-9
        )
        assert curve.estimated(shorter_ms) == 0


def test_waits_from_before_the_window_count_from_their_entry() -> None:
    """Exponential waits with a median of 416 s, seen for the last ten minutes of many hours: the median stays."""
    rng = np.random.default_rng(1)
    begun = rng.uniform(-14_400, 600, 40_000)
    need = rng.exponential(416 / math.log(2), 40_000)
    seen = begun + need > 0
    begun, need = begun[seen], need[seen]
    waited, has_ended = np.ceil(np.minimum(need, 600 - begun)), begun + need <= 600
    entered = np.floor(np.maximum(-begun, 0))
    median, low, high = counted(waited, [has_ended], entered[begun < 0]).need_ms(0.5)
    assert median == pytest.approx(416, rel=0.05)
    assert low is not None
    assert high is not None
    assert low <= 416 <= high
    without, _, _ = counted(waited, [has_ended]).need_ms(0.5)
    assert without is not None
    assert without > 600


@pytest.mark.slow  # 300 repetitions
@pytest.mark.parametrize(("together", "calls"), [(1, 1_000), (10, 300), (50, 100)])
def test_bounds_cover_what_ends_together(together: int, calls: int) -> None:
    """Waits that one event ends are one observation: in 300 repetitions, 93 to 97 % of the bounds have the truth, with
    a third of the callers cut off by a shorter timeout.
    """
    rng = np.random.default_rng(together)
    clusters = np.repeat(np.arange(calls), together)
    truth = {at_ms: math.exp(-at_ms / 100) for at_ms in (50, 100, 200)}
    covered = 0
    for _ in range(300):
        need_ms = np.ceil(rng.exponential(100, calls)).repeat(together)
        timeout_ms = np.where(rng.random(calls) < 0.3, 60, 500).repeat(together)
        in_time = need_ms <= timeout_ms
        curve = counted(np.minimum(need_ms, timeout_ms), [in_time], clusters=clusters)
        said = {at_ms: curve.expires(at_ms) for at_ms in truth}
        covered += sum(said[at_ms].low <= share <= said[at_ms].high for at_ms, share in truth.items())
    assert 0.93 <= covered / (300 * len(truth)) <= 0.97


@pytest.mark.slow  # 300 repetitions
@pytest.mark.parametrize("are_hasty_slow", [True, False])
def test_bounds_cover_expired_waits_that_may_have_failed_later(are_hasty_slow: bool) -> None:
    """Of expired waits only those that would have been satisfied are known, all of them or a random half; the others
    would have failed. Timeouts are drawn, or those are short that need long.
    """
    rng = np.random.default_rng(2)
    truth = {at_ms: math.exp(-at_ms / 100 - at_ms / 200) for at_ms in (60, 90, 130)}
    covered = 0
    for _ in range(300):
        need_ms, fail_ms = np.ceil(rng.exponential(100, 1_000)), np.ceil(rng.exponential(200, 1_000))
        is_hasty = need_ms > 70 if are_hasty_slow else rng.random(1_000) < 0.5
        end_ms = np.minimum(need_ms, fail_ms)
        is_expired = is_hasty & (end_ms > 50)
        is_reached = is_expired & (need_ms <= fail_ms) & (are_hasty_slow | (rng.random(1_000) < 0.5))
        waited_ms = np.where(is_expired & ~is_reached, 50, end_ms)
        ends = [is_reached | (~is_expired & (need_ms <= fail_ms)), ~is_expired & (fail_ms < need_ms)]
        times, place = np.unique(waited_ms.astype(np.int64), return_inverse=True)
        *counts, lost = (np.bincount(place, end, len(times)).astype(np.int64) for end in (*ends, ~np.any(ends, axis=0)))
        said = estimate(times, counts, lost, unreached=lost)
        covered += sum(said.expires(at_ms).low <= share <= said.expires(at_ms).high for at_ms, share in truth.items())
    assert 0.93 <= covered / (300 * len(truth)) <= (1 if are_hasty_slow else 0.97)


COUNTED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 5)), max_size=40)
"""Group, value, and how many were counted of it."""
EMPTY = (np.zeros(0, np.int64),) * 3
SHARES = {"p50": 500_000, "p90": 900_000, "p999": 999_000, "most": 1_000_000}


@given(COUNTED)
def test_a_quantile_of_counts_is_that_of_the_rows(counted: list[tuple[int, int, int]]) -> None:
    group, value, weight = (np.array(column, np.int64) for column in zip(*counted, strict=True)) if counted else EMPTY
    found = quantiles(group, value, weight, 3, SHARES)
    for number in range(3):
        rows = sorted(v for g, v, w in counted if g == number for _ in range(w))
        for name, millionths in SHARES.items():
            if rows:
                assert found[name][number] == rows[-(-len(rows) * millionths // 1_000_000) - 1]
