"""Exact quantiles of weighted values: the smallest value such that enough of the total weight is at or below it.

Plain numpy over counts by value, which are few whatever the number of operations.
"""

from collections.abc import Mapping
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
