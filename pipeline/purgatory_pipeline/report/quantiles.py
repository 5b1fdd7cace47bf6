"""Exact quantiles of values that come with counts: the smallest value that enough of the counted are not above.

Counts are added up along the sorted values of each group, so memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

MILLION: Final = 1_000_000
QUANTILES: Final[Mapping[str, int]] = {"p50": 500_000, "p90": 900_000, "p99": 990_000, "p999": 999_000}
"""Of the report's tables, in whole millionths: shares like 0.99 are not exact in binary."""


def with_ranks(counts: DataFrame, keys: Sequence[str], value: str, weight: Column) -> DataFrame:
    """Adds `_rank`, the counted up to and with a row, and `_all`, those of its group. Null values rank first."""
    along = Window.partitionBy(*keys).orderBy(value)
    return counts.withColumns(
        {
            "_rank": F.sum(weight).over(along.rowsBetween(Window.unboundedPreceding, Window.currentRow)),
            "_all": F.sum(weight).over(along.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)),
        }
    )


def quantile(value: Column, counts: Column, millionths: int) -> Column:
    """An aggregate over rows after `with_ranks`, of those for which `counts` holds; null where there are none."""
    return F.min(F.when(counts & (F.col("_rank") * MILLION >= F.col("_all") * millionths), value))
