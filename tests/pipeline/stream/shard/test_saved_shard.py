"""The state of a shard between two micro-batches: all of it is kept."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard.shard import Shard
from purgatory_pipeline.streaming.stream.shard.stream_rows import ROWS

from purgatory.engine.codes import FETCH, HIGH_WATERMARK, KEY_SIGNALLED, LEADER_APPEND, PRODUCE, SIGNAL
from tests.pipeline.stream import shard_cost
from tests.pipeline.stream.simulated_history import Row, outcomes_of

DELAY_MS = 100


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
    return shard_bytes.to_bytes(shard)


def ends_after(octets: bytes) -> tuple[list[tuple[int, str, int]], int, int]:
    """How all of it ends: id, outcome and wait of each operation; what was late; what still waits."""
    shard = shard_bytes.from_bytes(octets, DELAY_MS)
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


def test_a_million_wait_beside_a_batch() -> None:
    """They are saved and loaded with it, in a few bytes each; the batch is answered, in the end all of them expire, and
    nothing is left of them but the marks.
    """
    shard, rng = Shard(), np.random.default_rng(2)
    next_id, at_ms = shard_cost.filled(shard, 1_000_000, rng)
    octets = shard_bytes.to_bytes(shard)
    assert len(octets) < 16_000_000
    shard = shard_bytes.from_bytes(octets, 0)
    arriving = shard_cost.produces(rng, next_id, 1_000, at_ms, np.full(1_000, 5))
    rows = pa.concat_tables([arriving, shard_cost.marks(at_ms + shard_cost.BATCH_MS, 5)], promote_options="default")
    answered = shard.play(rows).outcomes.column("operation_id").to_pylist()
    assert sorted(answered) == list(range(next_id, next_id + 1_000))
    ended = shard.play(table({"at_ms": at_ms + 3_600_000})).outcomes
    assert pc.count_distinct(ended.column("operation_id")).as_py() == ended.num_rows == 1_000_000
    assert ended.column("outcome").unique().to_pylist() == ["expired"]
    assert len(shard_bytes.to_bytes(shard)) < 50_000
