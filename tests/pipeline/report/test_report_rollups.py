"""Counts, quantiles and rates: those that executors compute from repeated facts, and those the driver does from
counts.
"""

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from purgatory_pipeline.report.quantiles import quantiles
from purgatory_pipeline.report.rollups import OF_GROUPS, OF_TOPICS, ROLLED_UP, measured
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


def test_a_row_for_each_group_and_each_topic() -> None:
    """Facts of two partitions make two groups and one topic with two partitions; columns not of a level are null."""
    facts = [
        ("expired", 10, 2, 0, 3),
        ("satisfied", 4, 0, 0, 5),
        ("satisfied", 6, 0, 1, 2),
        ("registered", None, None, 1, 9),
    ]
    laid_out = [
        {"fate": fate, "waited_ms": waited_ms, "lateness_ms": lateness_ms, "level": level, "kind": "fetch",
         "window": 7 if level == OF_GROUPS else None, "topic": "t", "partition": partition,
         "principal": "p" if level == OF_GROUPS else None, "weight": weight}
        for level in (OF_GROUPS, OF_TOPICS)
        for fate, waited_ms, lateness_ms, partition, weight in facts
    ]  # fmt: skip
    rows = measured(pa.Table.from_pylist(laid_out)).to_pylist()
    assert list(rows[0]) == list(ROLLED_UP)
    first, second, topic = sorted(rows, key=lambda row: (row["level"], row["partition"] or 0))
    assert (first["partition"], second["partition"], topic["partition"]) == (0, 1, None)
    assert (first["window"], topic["window"], topic["principal"]) == (7, None, None)
    assert (first["partitions"], topic["partitions"]) == (1, 2)
    assert (first["ended"], first["expired"], first["satisfied"], first["registered"]) == (8, 3, 5, 0)
    assert (topic["ended"], topic["registered"], topic["waited_total_ms"]) == (10, 9, 62)
    assert (first["wait_p50_ms"], first["wait_p90_ms"], topic["wait_max_ms"]) == (4, 10, 10)
    assert (first["lateness_p50_ms"], second["lateness_p50_ms"]) == (2, None)
    assert (first["expiry_rate"], second["completion_rate"]) == (3 / 8, 1.0)


def test_nothing_ended() -> None:
    """A row of registrations alone has no waits and no rates."""
    only = {"fate": "registered", "waited_ms": 0, "lateness_ms": 0, "level": 2, "window": 1, "topic": "",
            "partition": 0, "kind": "fetch", "principal": "", "weight": 4}  # fmt: skip
    row = measured(pa.Table.from_pylist([only])).to_pylist()[0]
    assert (row["registered"], row["ended"]) == (4, 0)
    assert (row["wait_p50_ms"], row["lateness_max_ms"], row["completion_rate"], row["expiry_rate"]) == (None,) * 4


def test_stragglers_of_all_topics_and_of_each() -> None:
    """Operations held back, by how much and their share: over all topics, for each topic, and by cause."""
    counts = pd.DataFrame(
        [("a", "follower", 1, 10, 3, 90), ("a", "follower", 2, 40, 1, 60), ("b", "leader", 1, 20, 4, 100),
         ("b", "unknown", None, None, 2, 30)],
        columns=["topic", "cause", "replica_id", "held_ms", "waits", "waited_ms"],
    )  # fmt: skip
    rows = {(row["topic"], row["replica_id"]): row for row in stragglers(counts).to_pylist()}
    assert set(rows) == {(None, 1), (None, 2), ("a", 1), ("a", 2), ("b", 1)}
    assert rows[None, 1] == {
        "topic": None, "replica_id": 1, "held_back": 7, "share": 7 / 8, "total_ms": 110, "median_ms": 20, "p99_ms": 20,
        "max_ms": 20,
    }  # fmt: skip
    assert rows["a", 1]["share"] == 3 / 4
    causes = {row["cause"]: (row["operations"], row["waited_total_ms"]) for row in slow_produces(counts).to_pylist()}
    assert causes == {"follower": (4, 150), "leader": (4, 100), "unknown": (2, 30)}


def test_nothing_was_slow() -> None:
    """Both tables are empty where no produce was slow."""
    counts = pd.DataFrame(columns=["topic", "cause", "replica_id", "held_ms", "waits", "waited_ms"])
    assert stragglers(counts).num_rows == slow_produces(counts).num_rows == 0
