"""How long operations need, from those that got there and those that did not: the Kaplan-Meier estimate.

An operation that expired after 500 ms needs more than 500 ms, but not how much more is known. So at each time the
estimate asks: of those still waiting, which share got there now? The product of the remaining shares is the share that
needs longer. Every end but a satisfied one counts as "needs longer than that", failures too; they come after those
satisfied in the same millisecond. Bounds are Greenwood's, on the log(-log) scale.

Plain numpy over counts by millisecond, which are few whatever the number of operations.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Z: Final = 1.959963984540054
"""95 %, two-sided."""

AT_RISK_MIN: Final = 10
"""Answers are given only where this many operations were seen to wait that long."""

SLACK: Final = 1e-9
"""A share of 0.01 may be a little more in floating point."""

POINTS_MAX: Final = 200
"""Points of a curve, about: this many along its height, and again along the logarithm of time."""


@dataclass(frozen=True)
class Share:
    """A share between its bounds. `value` is None where too few were seen; the bounds hold even then."""

    value: float | None
    low: float
    high: float

    def columns(self, name: str) -> dict[str, float | None]:
        """As columns of a table: `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


@dataclass(frozen=True)
class Curve:
    """The estimate, with an entry for each time waited, rising.

    `at_risk` were still waiting just before; `waiting` is the share that needs longer (0 has NaN as its bounds).
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
        """How long AT_RISK_MIN operations were seen to wait; 0 if there are fewer."""
        return int(self.waited_ms[self._known - 1]) if self._known else 0

    @property
    def _known(self) -> int:
        """The number of entries with enough at risk."""
        return int(np.searchsorted(-self.at_risk, -AT_RISK_MIN, side="right"))

    def expires(self, timeout_ms: int) -> Share:
        """The share that needs longer than a timeout."""
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
        """How long this share needs at most, with lower and upper bound; None where too few were seen."""
        rest = 1 - share + SLACK
        known = slice(0, self._known)
        at_most = (self.waiting[known] <= rest, np.nan_to_num(self.low[known]) <= rest, self.high[known] <= rest)
        value, low, high = (int(self.waited_ms[np.argmax(fits)]) if fits.any() else None for fits in at_most)
        return value, low, high

    def shown(self) -> NDArray[np.intp]:
        """The entries that are distinguishable in a plot, and the last."""
        height = np.floor(self.waiting * POINTS_MAX)
        depth = np.floor(-np.log10(np.maximum(self.waiting, 1e-6)) * (POINTS_MAX / 8))
        time = np.floor(np.log2(self.waited_ms + 1.0) * (POINTS_MAX / 20))
        cells = np.stack([height, depth, time])
        is_new = np.append(True, (cells[:, 1:] != cells[:, :-1]).any(axis=0))
        is_new[-1] = True
        return np.flatnonzero(is_new)


def estimate(waited_ms: Ints, satisfied: Ints, others: Ints) -> Curve:
    """The curve of these counts, at least one; `waited_ms` rises."""
    both = satisfied + others
    at_risk = both[::-1].cumsum()[::-1]  # all that ended then or later, however
    left = at_risk - satisfied
    is_over = np.maximum.accumulate(left == 0)
    # Once nobody is left the share stays 0, which has no logarithm.
    some_left = np.where(left == 0, 1, left)
    logarithm = np.where(is_over, -np.inf, np.log(some_left / at_risk).cumsum())
    variance = (satisfied / (at_risk.astype(np.float64) * some_left)).cumsum()
    waiting = np.exp(logarithm)
    # On the log(-log) scale bounds stay between 0 and 1. It has no value before the first fall and after the last.
    has_fallen = (logarithm < 0) & ~is_over
    width = np.zeros(len(both))
    np.divide(Z * np.sqrt(variance), np.abs(logarithm), out=width, where=has_fallen)
    bounds = [np.exp(np.where(has_fallen, logarithm, 0.0) * np.exp(sign * width)) for sign in (1, -1)]
    low, high = (np.where(is_over, np.nan, bound) for bound in bounds)
    return Curve(waited_ms, at_risk, waiting, low, high)
