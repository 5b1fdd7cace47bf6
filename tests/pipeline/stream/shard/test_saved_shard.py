"""The state of a shard between two micro-batches: all of it is kept."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from purgatory_pipeline.engine_rows.integers import Integers
from purgatory_pipeline.stream import shard_state
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.stream_rows import ROWS

from purgatory.engine.codes import FETCH, HIGH_WATERMARK, KEY_SIGNALLED, LEADER_APPEND, PRODUCE, SIGNAL
from tests.pipeline.stream.simulated_history import Row, outcomes_of

DELAY_MS = 100
PARTITIONS = 1_000


def table(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=ROWS)


def saved_shard() -> bytes:
    """Operations of three kinds that wait, marks, counts of keys, a late row, and rows that are not due yet."""
    operation: Row = {"caller": "a", "timeout_ms": 5_000, "item": 0, "item_count": 1, "topic": "t", "partition": 0}
    shard = Shard(DELAY_MS)
    shard.play(
        table(
            {"at_ms": 1_000, "type": HIGH_WATERMARK, "topic": "t", "partition": 0, "offset": 3},
            {"at_ms": 1_001, "type": LEADER_APPEND, "topic": "t", "partition": 0, "offset": 4, "byte_position": 400},
            {"at_ms": 1_002, "type": KEY_SIGNALLED, "topic": "k", "offset": 2},
            operation | {"at_ms": 1_003, "kind": PRODUCE, "operation_id": 1, "offset": 9},
            operation | {"at_ms": 1_004, "kind": FETCH, "operation_id": 2, "offset": 3, "min_bytes": 300},
            operation
            | {"at_ms": 1_005, "kind": SIGNAL, "operation_id": 3, "topic": "k", "partition": None, "offset": 3},
            operation | {"at_ms": 1_200, "kind": PRODUCE, "operation_id": 4, "offset": 2},
        )
    )
    shard.play(table({"at_ms": 2, "type": HIGH_WATERMARK, "topic": "t", "partition": 0, "offset": 99}))
    return shard_state.to_bytes(shard)


def ends_after(octets: bytes) -> tuple[list[tuple[int, str, int]], int, int]:
    """The id, outcome and wait of each operation; the number of late rows; the number of pending operations."""
    shard = shard_state.from_bytes(octets, DELAY_MS)
    played = shard.play(
        table(
            {"at_ms": 1_300, "type": KEY_SIGNALLED, "topic": "k", "offset": 1},
            {"at_ms": 1_400, "type": HIGH_WATERMARK, "topic": "t", "partition": 0, "offset": 4},
            {"at_ms": 9_000},
        )
    )
    ends = [(outcome[1], outcome[4], outcome[5]) for outcome in outcomes_of(played.outcomes)]
    return sorted(ends), shard.late, shard.pending


def test_a_saved_shard_continues() -> None:
    """Nothing is lost: operations, marks, counts of keys, the number of late rows, and rows that were not due."""
    ends, late, pending = ends_after(saved_shard())
    assert ends == [(1, "expired", 5_000), (2, "satisfied", 396), (3, "satisfied", 295), (4, "satisfied", 0)]
    assert (late, pending) == (1, 0)


def test_many_pending_operations_are_saved_with_a_batch() -> None:
    """They are saved in a few bytes each. A batch is answered, in the end all of them expire, and the state has only
    marks.
    """
    pending, rng = 100_000, np.random.default_rng(2)
    shard = Shard()
    shard.play(produces(rng, 1, pending, 0, 2**40 + rng.integers(0, 1_000_000, pending)))
    octets = shard_state.to_bytes(shard)
    assert len(octets) < 16 * pending
    shard = shard_state.from_bytes(octets, 0)
    marks = [
        {"at_ms": 2_000, "type": HIGH_WATERMARK, "topic": "orders", "partition": partition, "offset": 5}
        for partition in range(PARTITIONS)
    ]
    rows = [produces(rng, pending + 1, 1_000, 1_000, np.full(1_000, 5)), table(*marks)]
    answered = shard.play(pa.concat_tables(rows, promote_options="default")).outcomes.column("operation_id").to_pylist()
    assert sorted(answered) == list(range(pending + 1, pending + 1_001))
    ended = shard.play(table({"at_ms": 4_000_000})).outcomes
    assert pc.count_distinct(ended.column("operation_id")).as_py() == ended.num_rows == pending
    assert ended.column("outcome").unique().to_pylist() == ["expired"]
    assert len(shard_state.to_bytes(shard)) < 50_000


def produces(rng: np.random.Generator, first_id: int, count: int, at_ms: int, offsets: Integers) -> pa.Table:
    """Operations of one item each, over all partitions, at random times in a second."""
    columns = {
        "at_ms": np.sort(at_ms + rng.integers(0, 1_000, count)),
        "kind": pa.repeat(pa.scalar(PRODUCE, pa.int8()), count),
        "caller": pa.repeat("", count),
        "operation_id": np.arange(first_id, first_id + count),
        "timeout_ms": rng.integers(1_000_000, 3_600_000, count),
        "item": np.zeros(count, np.int32),
        "item_count": np.ones(count, np.int32),
        "topic": pa.repeat("orders", count),
        "partition": rng.integers(0, PARTITIONS, count).astype(np.int32),
        "offset": offsets,
    }
    return pa.table(columns)
