"""Estimates from counts by value, in plain numpy: exact quantiles, and how operations end without a timeout.

A quantile is the smallest value such that enough of the total weight is at or below it.

An operation that waits can be satisfied, fail or be cancelled: *competing* ends, of which each has a cumulative
incidence (Aalen-Johansen), the share of operations that has ended so by a time. What is left, 1 minus their sum, still
waits; a timeout of that length would expire it. That an operation expired, or had not ended when the history did, says
only that it waits longer than that; in the same millisecond such ends come after the others.

Operations that were registered before the rows that were read count from the time from which they were observed
(delayed entry). Bounds are Greenwood's, on the log(-log) scale, widened where operations end together: one event that
ends fifty operations is one observation (`cluster_variances`). The upper bound also allows that expired operations of
which no later event is known could never have been satisfied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MILLION: Final = 1_000_000
QUANTILES: Final[Mapping[str, int]] = {"p50": 500_000, "p90": 900_000, "p99": 990_000, "p999": 999_000}
"""Quantiles of the report's tables in millionths, since shares such as 0.99 are not exact in binary."""


def quantiles(group: Ints, value: Ints, weight: Ints, groups: int, wanted: Mapping[str, int]) -> dict[str, Ints]:
    """The value of each quantile, by name, for each group from 0 to `groups`; undefined for groups without rows.

    `weight` is the count of each value, at least 1.
    """
    if not len(group):
        return {name: np.zeros(groups, np.int64) for name in wanted}
    order = np.lexsort((value, group))
    values, passed = value[order], weight[order].cumsum()
    ends = np.searchsorted(group[order], np.arange(groups), side="right")
    through = np.append(0, passed)[ends]
    before = np.append(0, through[:-1])
    last = len(values) - 1

    def of_share(millionths: int) -> Ints:
        enough = before + ((through - before) * millionths + MILLION - 1) // MILLION
        found: Ints = values[np.minimum(np.searchsorted(passed, enough), last)]
        return found

    return {name: of_share(millionths) for name, millionths in wanted.items()}


Floats = NDArray[np.float64]

Z: Final = 1.959963984540054
Z_ONE_SIDED: Final = 1.6448536269514722
"""Normal quantiles for 95 % bounds; one-sided if the truth can be near one of them only (Imbens and Manski)."""

AT_RISK_MIN: Final = 10
"""Estimates are given only up to the longest wait that at least this many operations reached."""

SLACK: Final = 1e-9
"""Tolerance for floating point: a share of 0.01 may be slightly larger."""

POINTS_MAX: Final = 200
"""Approximate number of points of a curve: this many along its height, and the same again along the logarithm of time.
"""


@dataclass(frozen=True)
class Share:
    """A share with its bounds. `value` is None if too few operations were observed; the bounds are valid even then."""

    value: float | None
    low: float
    high: float

    def columns(self, name: str) -> dict[str, float | None]:
        """The share as columns of a table: `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


VARIANCES_AT_MS: Final[Ints] = np.array([step * 10**power for power in range(7) for step in (1, 2, 5)])
"""The times at which the variance of operations that end together is estimated; it is interpolated in between."""


@dataclass(frozen=True)
class Curve:
    """The estimate, with an entry for each time waited, ascending.

    `at_risk`: operations still waiting just before that time. `waiting`: the share that still waits after it (at 0 its
    bounds are NaN). `ended`: the cumulative incidence of each competing end. `censored`: operations that left until
    then without one of these.
    """

    operations: int
    waited_ms: Ints
    at_risk: Ints
    waiting: Floats
    low: Floats
    high: Floats
    ended: tuple[Floats, ...]
    censored: Ints
    hazard: Floats
    """The sum of the rates at which operations ended until that time."""
    variance: Floats
    """Of the logarithm of `waiting`, if each operation ends by itself."""

    @property
    def seen_until_ms(self) -> int:
        """The longest wait reached by at least AT_RISK_MIN operations; 0 if there are fewer."""
        return int(self.waited_ms[self._known - 1]) if self._known else 0

    @property
    def _known(self) -> int:
        """The number of entries up to the last with at least AT_RISK_MIN operations at risk."""
        return int(np.flatnonzero(self.at_risk >= AT_RISK_MIN).max(initial=-1)) + 1

    def shares_ended(self, timeout_ms: int) -> list[float]:
        place = int(np.searchsorted(self.waited_ms, timeout_ms, side="right"))
        return [float(share[place - 1]) if place else 0.0 for share in self.ended]

    def estimated(self, timeout_ms: int) -> float:
        """The share of operations that left before the end of a timeout, and of which only an estimate is known."""
        place = int(np.searchsorted(self.waited_ms, timeout_ms))
        return float(self.censored[place - 1] / self.operations) if place else 0.0

    def expires(self, timeout_ms: int) -> Share:
        place = int(np.searchsorted(self.waited_ms, timeout_ms, side="right"))
        last_known = min(place, self._known) - 1
        rule_of_three = min(1.0, 3 / self.operations)
        if last_known < 0:
            nothing_yet = place == 0 and self._known > 0
            return Share(1.0 if nothing_yet else None, 1.0 if nothing_yet else 0.0, 1.0)
        high = rule_of_three if np.isnan(self.high[last_known]) else float(self.high[last_known])
        if self.waiting[place - 1] == 0:
            return Share(0.0, 0.0, high)
        if timeout_ms > self.seen_until_ms:
            return Share(None, 0.0, high)
        return Share(float(self.waiting[place - 1]), float(self.low[place - 1]), high)

    def need_ms(self, share: float) -> tuple[int | None, int | None, int | None]:
        """The time within which this share of operations completes, with lower and upper bound; None if too few
        operations were observed.
        """
        rest = 1 - share + SLACK
        known = slice(0, self._known)
        at_most = (self.waiting[known] <= rest, np.nan_to_num(self.low[known]) <= rest, self.high[known] <= rest)
        value, low, high = (int(self.waited_ms[np.argmax(fits)]) if fits.any() else None for fits in at_most)
        return value, low, high

    def shown(self) -> NDArray[np.intp]:
        """The indices of entries that are distinguishable in a plot, and of the last entry."""
        height = np.floor(self.waiting * POINTS_MAX)
        depth = np.floor(-np.log10(np.maximum(self.waiting, 1e-6)) * (POINTS_MAX / 8))
        time = np.floor(np.log2(self.waited_ms + 1.0) * (POINTS_MAX / 20))
        cells = np.stack([height, depth, time])
        is_new = np.append(True, (cells[:, 1:] != cells[:, :-1]).any(axis=0))
        is_new[-1] = True
        return np.flatnonzero(is_new)


def estimate(
    waited_ms: Ints,
    ended: Sequence[Ints],
    censored: Ints,
    entered: Ints | None = None,
    widening: Floats | None = None,
    unreached: Ints | None = None,
) -> Curve:
    """Estimate the curve from the number of operations at each time waited (ascending).

    Args:
        waited_ms: The times.
        ended: The operations with each of the competing ends.
        censored: Those that left without one; at least one operation must have left.
        entered: Those that are observed only from this time of their wait on.
        widening: At each of `VARIANCES_AT_MS`, the variance over that of operations that end one by one.
        unreached: Of those censored, the ones of which no later event is known. If there was none, they could only have
            failed or been cancelled, and more still wait than the curve says: the upper bound allows for that.

    """
    ends = np.sum(ended, axis=0)
    leaving = ends + censored
    late = np.zeros_like(leaving) if entered is None else entered
    # All operations that left at that time or later, except those that were not observed yet.
    at_risk = leaving[::-1].cumsum()[::-1] - (late.sum() - late.cumsum())
    left = at_risk - ends
    is_over = np.maximum.accumulate((left <= 0) & (ends > 0))
    # Once no operation is left, the share stays 0, whose logarithm does not exist.
    some_left, some_at_risk = np.maximum(left, 1), np.maximum(at_risk, 1)
    steps = np.where(ends > 0, np.log(some_left / some_at_risk), 0.0)
    fallen = steps.cumsum()
    logarithm = np.where(is_over, -np.inf, fallen)
    variance = (ends / (some_at_risk.astype(np.float64) * some_left)).cumsum()
    waiting = np.exp(logarithm)
    before = np.append(1.0, waiting[:-1])
    incidences = tuple((before * (some / some_at_risk)).cumsum() for some in ended)
    # `most`: the same curve, if unreached operations can only have the other ends.
    others = np.maximum(left + ended[0], 1) / some_at_risk
    staying = others.cumprod()
    unreached_left = staying * ((0 if unreached is None else unreached) / staying).cumsum()
    came = np.append(0.0, unreached_left[:-1])
    stay, there = some_left + came * others, some_at_risk + came
    most = np.where(ends > 0, np.log(stay / there), 0.0).cumsum()
    # On the log(-log) scale, bounds stay between 0 and 1. It is undefined before the first fall and after the last.
    wider = 1.0 if widening is None else np.interp(np.log(waited_ms + 1.0), np.log(VARIANCES_AT_MS + 1.0), widening)
    is_spread = (fallen < 0) & ~is_over
    spread, most_spread = (
        np.where(is_spread, np.sqrt(own * wider), 0.0) for own in (variance, (ends / (stay * there)).cumsum())
    )
    z = Z_ONE_SIDED + (Z - Z_ONE_SIDED) * np.exp(-2 * (most - fallen) / np.maximum(spread, SLACK))
    low, high = (
        np.where(is_over & (came == 0), np.nan, np.exp(end * np.exp(z * width / np.maximum(-end, SLACK))))
        for end, width in ((logarithm, spread), (most, -most_spread))
    )
    hazard = (ends / some_at_risk).cumsum()
    return Curve(
        int(leaving.sum()), waited_ms, at_risk, waiting, low, high, incidences, censored.cumsum(), hazard, variance
    )


def cluster_variances(curve: Curve, waited_ms: Ints, has_ended: NDArray[np.bool_], cluster: Ints) -> Floats:
    """The variance of the logarithm of `waiting` at each of `VARIANCES_AT_MS`, from operations that end in clusters.

    It is the sum of the squared influence of each cluster, the sum of the influence of its operations. Clusters are
    numbered from 0. Variances of several parts of the operations may be added up.
    """
    own = np.searchsorted(curve.waited_ms, waited_ms)
    until = np.searchsorted(curve.waited_ms, VARIANCES_AT_MS, side="right")
    at_risk = np.maximum(curve.at_risk, 1)
    rates = np.diff(curve.hazard, prepend=0.0) / at_risk
    passed = np.append(0.0, rates.cumsum())
    influence = passed[own + 1] - has_ended / at_risk[own]
    return np.array(
        [(np.bincount(cluster, np.where(own < place, influence, passed[place])) ** 2).sum() for place in until]
    )


def widened(curve: Curve, variances: Floats) -> Floats:
    """The factor by which `cluster_variances` exceed the variance of operations that end one by one; at least 1."""
    place = np.searchsorted(curve.waited_ms, VARIANCES_AT_MS, side="right") - 1
    alone = np.where(place < 0, 0.0, curve.variance[np.maximum(place, 0)])
    factor = np.ones(len(variances))
    np.divide(variances, alone, out=factor, where=alone > 0)
    return np.maximum(factor, 1.0)
