"""Load that moves between a daemon and a stream: nothing is lost on the way, and nothing ends otherwise for it."""

import random
import time
from functools import partial
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from purgatory_client import Client, Outcome
from purgatory_client.batches import produce
from purgatory_pipeline.streaming.stream import journal_moves
from purgatory_pipeline.streaming.stream.journal_moves import (
    MoveRefused,
    journal_of_shards,
    opened,
    shard_of_journal,
)
from purgatory_pipeline.streaming.stream.payloads import owners
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard.shard import Shard
from purgatory_pipeline.streaming.stream.shard.stream_rows import ROWS

from purgatory.engine.codes import HIGH_WATERMARK, KEY_SIGNALLED, PRODUCE, SIGNAL
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.journal.continued_time import journal_now_ms, read_clocks
from purgatory.journal.maintenance import main as journal_main
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.conftest import StartDaemon
from tests.pipeline.stream.shard_drive import Drive
from tests.pipeline.stream.simulated_history import SimulatedHistory, outcomes_of


class MovingDrive(Drive):
    """Half way, all that waits goes through a journal."""

    folder: Path

    def _divide(self, shards: int) -> None:
        pending = sum(shard.pending for shard in self.shards)
        assert journal_of_shards([shard_bytes.to_bytes(shard) for shard in self.shards], self.folder) == pending
        made = shard_bytes.divided([shard_of_journal(self.folder)], shards)
        self.shards = [shard_bytes.from_bytes(octets, 0, number=number) for number, octets in enumerate(made)]
        assert sum(shard.pending for shard in self.shards) == pending


@pytest.mark.parametrize("seed", [1, 4, 5, 8, 11, 12])
def test_a_history_ends_as_by_one_engine_though_it_went_through_a_journal(tmp_path: Path, seed: int) -> None:
    """Partly satisfied operations, removed partitions, epochs and key counts survive the move."""
    MovingDrive.folder = tmp_path / "journal"
    history = SimulatedHistory.of_seed(seed, 1_000)
    drive = MovingDrive(history, random.Random(seed), shards=2, delay_ms=0, divided=3)
    assert (tmp_path / "journal" / "journal.db").exists()
    assert sorted(map(repr, drive.outcomes())) == sorted(map(repr, history.outcomes))


def test_a_daemon_hands_over_and_takes_back(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Operations move from a real daemon to a shard, with the daemon's marks, and from there to another daemon. Each
    completes once, and results from before the move are not repeated.
    """
    first = start_daemon("--data-dir", str(tmp_path / "first"))
    with Client(first.address) as client:
        client.advance(("orders", 0), high_watermark=5)
        client.register("nightly", 1, produce([("orders", 0)], offsets=list(range(1, 41)), timeouts_ms=[600_000]))
        with pytest.raises(MoveRefused, match="in use by process"):
            shard_of_journal(tmp_path / "first")
    first.stop()
    with pytest.raises(MoveRefused, match="unacknowledged results"):
        shard_of_journal(tmp_path / "first")
    again = start_daemon("--data-dir", str(tmp_path / "first"))
    with grpc.insecure_channel(again.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        stub.Acknowledge(wire.AcknowledgeRequest(session_id="nightly", sequence=5), timeout=30)
    again.stop()
    shard = shard_bytes.from_bytes(shard_of_journal(tmp_path / "first"), 0)
    assert shard.pending == 35
    now_ms = time.time_ns() // 1_000_000
    mark = {"at_ms": now_ms, "type": HIGH_WATERMARK, "topic": "orders", "partition": 0, "offset": 20}
    played = shard.play(pa.Table.from_pylist([mark], schema=ROWS))
    assert sorted(played.outcomes.column("operation_id").to_pylist()) == list(range(6, 21))
    assert set(played.outcomes.column("caller").to_pylist()) == {"nightly"}
    assert journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "second") == 20
    assert journal_main(["check", str(tmp_path / "second")]) == 0
    with pytest.raises(MoveRefused, match="already"):
        journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "second")
    second = start_daemon("--data-dir", str(tmp_path / "second"))
    with Client(second.address) as client:
        assert client.partition(("orders", 0)).high_watermark == 20
        client.advance(("orders", 0), high_watermark=100)
        found = list(client.results("nightly"))
    assert sorted(id_ for batch in found for id_ in batch.operation_ids) == list(range(21, 41))
    assert {outcome for batch in found for outcome in batch.results.outcomes} == {Outcome.SATISFIED}


def test_a_stream_whose_clock_is_ahead_gives_each_wait_its_time(tmp_path: Path) -> None:
    """A deadline stays where it was by the wall clock; it does not come early by as much as the clock was ahead."""
    hour_ms = 3_600_000
    ahead_ms = time.time_ns() // 1_000_000 + hour_ms
    wait = {"at_ms": ahead_ms, "kind": PRODUCE, "operation_id": 1, "timeout_ms": 1_000, "item": 0, "item_count": 1}
    shard = Shard()
    shard.play(pa.Table.from_pylist([wait | {"topic": "t", "partition": 0, "offset": 1}], schema=ROWS))
    assert journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "journal") == 1
    with opened(tmp_path / "journal") as store:
        last = store.moment()
        assert last is not None
        (row,) = store.rows("registrations")
    saved = SavedOperations.from_bytes(row[-1])
    daemon_ms = journal_now_ms(last[0], read_clocks())
    left_ms = saved.deadlines_ms[0] - daemon_ms
    late_ms = time.time_ns() // 1_000_000 + hour_ms - ahead_ms
    assert left_ms >= hour_ms + 1_000 - late_ms - 1
    assert saved.registered_ms[0] <= daemon_ms, "no operation waits for less than no time"


def signals(count: int, at_ms: int) -> pa.Table:
    """Keys in order, each signalled once."""
    keys = pa.array([f"key-{number:06}" for number in range(count)])
    return pa.table(
        {
            "at_ms": pa.repeat(pa.scalar(at_ms), count),
            "place": pa.array(range(count)),
            "type": pa.repeat(pa.scalar(KEY_SIGNALLED, pa.int8()), count),
            "topic": keys,
            "offset": pa.repeat(pa.scalar(1), count),
        }
    )


def signal_waits(caller: str, ids: range, keys: list[str], count: int, at_ms: int) -> pa.Table:
    """Operations that wait until their key has been signalled `count` times."""
    wait = {"at_ms": at_ms, "kind": SIGNAL, "caller": caller, "timeout_ms": 1_000_000, "item": 0, "item_count": 1}
    return pa.Table.from_pylist(
        [wait | {"operation_id": id_, "topic": key, "offset": count} for id_, key in zip(ids, keys, strict=True)], ROWS
    )


@pytest.mark.slow  # thousands of keys in each of several shards
def test_counts_of_many_keys_do_not_depend_on_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys than a daemon keeps: all counts are kept, in any number of shards, after they are divided, and of keys
    that are waited for also in a journal.
    """
    keys_max = 10_000  # a tenth of a daemon's, which takes a tenth of the time
    monkeypatch.setattr(journal_moves, "EngineLimits", partial(EngineLimits, signal_keys_max=keys_max))
    waited = [f"key-{number:06}" for number in range(8)]
    first = pa.concat_tables(
        [signals(8, 1), signal_waits("first", range(1, 9), waited, 2, 2), signals(keys_max + 10, 3)],
        promote_options="default",
    )
    # The first eight keys are signalled once more, so those waits end. Later waits need both counts.
    second = pa.concat_tables(
        [signal_waits("later", range(1, 9), waited, 2, 5), signal_waits("never", range(1, 9), waited, 3, 5)],
        promote_options="default",
    )
    ends = {}
    for count, divided in ((1, 1), (3, 2)):
        shards = [Shard(number=number) for number in range(count)]
        played = [shard.play(part_of(first, shard.number, count)) for shard in shards]
        made = shard_bytes.divided([shard_bytes.to_bytes(shard) for shard in shards], divided)
        shards = [shard_bytes.from_bytes(octets, 0, number=number) for number, octets in enumerate(made)]
        played += [shard.play(part_of(second, shard.number, divided)) for shard in shards]
        ends[count, divided] = sorted(map(repr, outcomes_of(pa.concat_tables([one.outcomes for one in played]))))
        assert sum(shard.pending for shard in shards) == 8
        folder = tmp_path / f"journal-{count}-{divided}"
        assert journal_of_shards([shard_bytes.to_bytes(shard) for shard in shards], folder) == 8
        with opened(folder) as store:
            counts = {key: found for _, key, found in store.rows("keys")}
        assert {counts.get(key) for key in waited} == {2}, "of keys that are waited for none is lost"
        assert len(counts) == keys_max
    assert ends[1, 1] == ends[3, 2]
    assert len(ends[1, 1]) == 16


def part_of(rows: pa.Table, number: int, shards: int) -> pa.Table:
    """The rows of one shard."""
    own = owners(rows, shards)
    return rows.filter(pa.array((own < 0) | (own == number)))


@pytest.mark.slow  # a hundred thousand operations
def test_more_waited_keys_than_a_daemon_keeps_do_not_move(tmp_path: Path) -> None:
    """The error has both numbers."""
    keys = [f"key-{number}" for number in range(EngineLimits().signal_keys_max + 1)]
    shard = Shard()
    shard.play(signal_waits("a", range(1, len(keys) + 1), keys, 1, 5))
    with pytest.raises(MoveRefused, match="wait for 100,001 keys; a daemon keeps the counts of 100,000"):
        journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "journal")


def test_rows_that_are_kept_back_do_not_move(tmp_path: Path) -> None:
    """They are not due yet, and a daemon cannot store them: the error has the remedy."""
    shard = Shard(1_000)
    wait = {"at_ms": 5_000, "kind": PRODUCE, "operation_id": 1, "item": 0, "item_count": 1, "topic": "t", "offset": 1}
    shard.play(pa.Table.from_pylist([wait | {"partition": 0}], schema=ROWS))
    with pytest.raises(MoveRefused, match="not due yet"):
        journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "journal")
    with pytest.raises(MoveRefused, match="no journal"):
        shard_of_journal(tmp_path / "journal")
