"""Estimates from counts by value, in plain numpy: exact quantiles, and the time that operations need (Kaplan-Meier).

A quantile is the smallest value such that enough of the total weight is at or below it.

The survival curve is estimated from satisfied and unsatisfied operations alike. An operation that expired after 500 ms
needs more than 500 ms, but how much more is unknown. For each time, the estimate therefore takes the share of
operations still waiting that were satisfied at that time. The product of the remaining shares is the share that needs
longer. Every end except a satisfied one, failures included, counts as "needs longer than that"; in the same
millisecond such ends come after the satisfied ones. Bounds are Greenwood's, on the log(-log) scale.
"""

from collections.abc import Mapping
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
"""Normal quantile for two-sided 95 % bounds."""

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


@dataclass(frozen=True)
class Curve:
    """The estimate, with an entry for each time waited, ascending.

    `at_risk`: operations still waiting just before that time. `waiting`: the share that needs longer (at 0 its bounds
    are NaN).
    """

    waited_ms: Ints
    at_risk: Ints
    waiting: Floats
    low: Floats
    high: Floats

    @property
    def operations(self) -> int:
        return int(self.at_risk[0])

    @property
    def seen_until_ms(self) -> int:
        """The longest wait reached by at least AT_RISK_MIN operations; 0 if there are fewer."""
        return int(self.waited_ms[self._known - 1]) if self._known else 0

    @property
    def _known(self) -> int:
        """The number of entries with at least AT_RISK_MIN operations at risk."""
        return int(np.searchsorted(-self.at_risk, -AT_RISK_MIN, side="right"))

    def expires(self, timeout_ms: int) -> Share:
        """The share of operations that needs longer than a timeout."""
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


def estimate(waited_ms: Ints, satisfied: Ints, others: Ints) -> Curve:
    """Estimates the curve from these counts, at least one. `waited_ms` must be ascending."""
    both = satisfied + others
    at_risk = both[::-1].cumsum()[::-1]  # all operations that ended at that time or later, whatever the outcome
    left = at_risk - satisfied
    is_over = np.maximum.accumulate(left == 0)
    # Once no operation is left, the share stays 0, whose logarithm does not exist.
    some_left = np.where(left == 0, 1, left)
    logarithm = np.where(is_over, -np.inf, np.log(some_left / at_risk).cumsum())
    variance = (satisfied / (at_risk.astype(np.float64) * some_left)).cumsum()
    waiting = np.exp(logarithm)
    # On the log(-log) scale, bounds stay between 0 and 1. It is undefined before the first fall and after the last.
    has_fallen = (logarithm < 0) & ~is_over
    width = np.zeros(len(both))
    np.divide(Z * np.sqrt(variance), np.abs(logarithm), out=width, where=has_fallen)
    bounds = [np.exp(np.where(has_fallen, logarithm, 0.0) * np.exp(sign * width)) for sign in (1, -1)]
    low, high = (np.where(is_over, np.nan, bound) for bound in bounds)
    return Curve(waited_ms, at_risk, waiting, low, high)
