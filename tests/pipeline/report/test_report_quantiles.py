"""Quantiles of counts, and empty tables of stragglers; `test_report_tables` compares all other figures with SQL."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from purgatory_pipeline.report.estimates import quantiles
from purgatory_pipeline.report.stragglers import slow_produces, stragglers

COUNTED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 5)), max_size=40)
"""Group, value, and how many were counted of it."""
EMPTY = (np.zeros(0, np.int64),) * 3
SHARES = {"p50": 500_000, "p90": 900_000, "p999": 999_000, "most": 1_000_000}


@given(COUNTED)
def test_a_quantile_of_counts_is_that_of_the_rows(counted: list[tuple[int, int, int]]) -> None:
    """It is the first value with enough rows up to it, as if they were written out one by one and sorted."""
    group, value, weight = (np.array(column, np.int64) for column in zip(*counted, strict=True)) if counted else EMPTY
    found = quantiles(group, value, weight, 3, SHARES)
    for number in range(3):
        rows = sorted(v for g, v, w in counted if g == number for _ in range(w))
        for name, millionths in SHARES.items():
            if rows:
                assert found[name][number] == rows[-(-len(rows) * millionths // 1_000_000) - 1]


def test_nothing_was_slow() -> None:
    """Both tables are empty where no produce was slow."""
    counts = pd.DataFrame(columns=["topic", "cause", "replica_id", "held_ms", "waits", "waited_ms"])
    assert stragglers(counts).num_rows == slow_produces(counts).num_rows == 0
