"""The shard on the driver, and what it keeps between two micro-batches: now and then a snapshot, in between rows."""

from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from purgatory_pipeline.streaming.stream.driver_shard import DriverShard, SavedStates
from purgatory_pipeline.streaming.stream.payloads import PAYLOAD, payload
from purgatory_pipeline.streaming.stream.shard.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.streaming.stream.shard.stream_rows import ROWS
from purgatory_pipeline.streaming.stream.shard_step import OUTCOMES
from purgatory_pipeline.streaming.stream.stream_inputs import StreamUnusable
from purgatory_pipeline.streaming.stream.wire_records import MALFORMED

from purgatory.engine.codes import PRODUCE
from tests.pipeline.stream.simulated_history import START_MS, Row, SimulatedHistory, outcomes_of

DELAY_MS = 400
WAITING = 20_000
PER_BATCH = 40


def payloads(rows: list[Row]) -> pa.Table:
    """As the sources give them; none where nothing has come."""
    if not rows:
        return PAYLOAD.empty_table()
    table = pa.Table.from_pylist(rows, schema=ROWS)
    return pa.Table.from_batches([payload(table, MALFORMED.empty_table(), 1)])


def waits(first_id: int, count: int, at_ms: int) -> list[Row]:
    """Operations of another caller, for which nothing comes."""
    shared: Row = {
        "at_ms": at_ms, "kind": PRODUCE, "caller": "patient", "timeout_ms": 1_000_000_000, "item": 0, "item_count": 1,
        "topic": "later", "partition": 0,
    }  # fmt: skip
    return [shared | {"operation_id": first_id + n, "offset": (first_id + n) * 7_919 % 1_000_003} for n in range(count)]


@pytest.mark.parametrize("seed", [1, 5])
def test_a_history_ends_as_by_the_engine_over_restarts_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Each third micro-batch is done again, by a process that starts from the files: before its state was kept, or
    afterwards. Most states are rows alone, as much more waits than comes.
    """
    history = SimulatedHistory.of_seed(seed, 1_000)
    parts = [waits(1, WAITING, START_MS)]
    for _, of_one in groupby(history.rows, key=lambda row: row["place"]):
        if len(parts) == 1 or len(parts[-1]) >= PER_BATCH:
            parts.append([])
        parts[-1] += of_one
    folder, shard = str(tmp_path), DriverShard(str(tmp_path), DELAY_MS)
    found = [OUTCOME_ROWS.empty_table()]
    only_rows = 0
    for batch, part in enumerate([*parts, [], [{"at_ms": history.end_ms + 1_000}]]):
        rows = payloads(part)
        played = shard.play(rows, batch)
        if batch % 3 == 1:
            if batch % 2:
                shard.commit(batch)
            shard = DriverShard(folder, DELAY_MS)
            again = shard.play(rows, batch)
            assert again.tables[OUTCOMES].equals(played.tables[OUTCOMES]), f"batch {batch} has other outcomes"
        shard.commit(batch)
        only_rows += batch in SavedStates(folder).rows
        found.append(played.tables[OUTCOMES])
    assert sorted(map(repr, outcomes_of(pa.concat_tables(found)))) == sorted(map(repr, history.outcomes))
    assert played.pending == WAITING
    assert only_rows > len(parts) / 2


def test_rows_are_played_again_with_the_delay_that_they_were_played_with(tmp_path: Path) -> None:
    """Each run may have its own."""
    at_ms = START_MS
    for batch, delay_ms in enumerate((500, 0, 2_000)):
        shard = DriverShard(str(tmp_path), delay_ms)
        pending = shard.play(payloads(waits(batch * WAITING + 1, WAITING if not batch else 10, at_ms)), batch).pending
        shard.commit(batch)
        assert pending == (0, WAITING + 10, WAITING + 10)[batch]
        at_ms += 100
    states = SavedStates(str(tmp_path))
    assert (list(states.snapshots), list(states.rows)) == ([0], [1, 2])
    assert states.load(2)[0].pending == WAITING + 10
    DriverShard(str(tmp_path), 0).play(payloads([]), 2)
    assert list(SavedStates(str(tmp_path)).rows) == [1], "what was kept of a batch that is done again"


def test_what_is_not_needed_any_more_is_dropped(tmp_path: Path) -> None:
    """Of snapshots the last two stay, with the rows in between: Spark may do the last micro-batch again. Where one is
    missing it is said so.
    """
    shard = DriverShard(str(tmp_path), 0)
    shard.play(payloads(waits(1, WAITING, START_MS)), 0)
    shard.commit(0)
    batch = 0
    while 0 in SavedStates(str(tmp_path)).snapshots:
        batch += 1
        assert batch < 200, "no second snapshot"
        shard.play(payloads(waits(batch * WAITING, 2_000, START_MS + batch)), batch)
        shard.commit(batch)
    states = SavedStates(str(tmp_path))
    first, last = states.snapshots
    assert last == batch
    assert list(states.rows) == list(range(first + 1, last))
    (tmp_path / states.rows[first + 1]).unlink()
    with pytest.raises(StreamUnusable, match="no state of batch"):
        SavedStates(str(tmp_path)).load(first + 1)
    assert SavedStates(str(tmp_path)).load(batch)[0].pending == shard.play(payloads([]), batch + 1).pending


def test_where_nothing_can_be_loaded_nothing_is_dropped(tmp_path: Path) -> None:
    """A checkpoint that has lost a state is left as it is."""
    shard = DriverShard(str(tmp_path), 0)
    for batch in range(3):
        shard.play(payloads(waits(batch * WAITING + 1, 10 if batch else WAITING, START_MS)), batch)
        shard.commit(batch)
    (tmp_path / SavedStates(str(tmp_path)).rows[1]).unlink()
    kept = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StreamUnusable, match="no state of batch 1"):
        DriverShard(str(tmp_path), 0).play(payloads([]), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
