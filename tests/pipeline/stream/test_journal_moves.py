"""Load that moves between a daemon and a stream: nothing is lost on the way, and nothing ends otherwise for it."""

import random
import time
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from purgatory_client import Client, Outcome
from purgatory_client.many import produce
from purgatory_pipeline.stream.journal_moves import LoadCannotMove, journal_of_shards, shard_of_journal
from purgatory_pipeline.stream.shard import shard_bytes
from purgatory_pipeline.stream.shard.shard import Shard
from purgatory_pipeline.stream.shard.stream_rows import ROWS

from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE
from purgatory.journal.maintenance import main as journal_main
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.conftest import StartDaemon
from tests.pipeline.stream.shard_drive import Drive
from tests.pipeline.stream.simulated_history import SimulatedHistory


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
    """Whatever waits then, for whatever: operations that are half answered, removed partitions, epochs, keys."""
    MovingDrive.folder = tmp_path / "journal"
    history = SimulatedHistory.of_seed(seed, 1_000)
    drive = MovingDrive(history, random.Random(seed), shards=2, delay_ms=0, divided=3)
    assert (tmp_path / "journal" / "journal.db").exists()
    assert sorted(map(repr, drive.outcomes())) == sorted(map(repr, history.outcomes))


def test_a_daemon_hands_over_and_takes_back(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """What waits in a real daemon goes on in a shard, by the marks that the daemon had, and what still waits there
    goes on in another daemon: each ends once, and what was answered before the move does not come again.
    """
    first = start_daemon("--data-dir", str(tmp_path / "first"))
    with Client(first.address) as client:
        client.advance(("orders", 0), high_watermark=5)
        client.register("nightly", 1, produce([("orders", 0)], offsets=list(range(1, 41)), timeouts_ms=[600_000]))
        with pytest.raises(LoadCannotMove, match="in use by process"):
            shard_of_journal(tmp_path / "first")
    first.stop()
    with pytest.raises(LoadCannotMove, match="nobody has acknowledged"):
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
    with pytest.raises(LoadCannotMove, match="already"):
        journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "second")
    second = start_daemon("--data-dir", str(tmp_path / "second"))
    with Client(second.address) as client:
        assert client.partition(("orders", 0)).high_watermark == 20
        client.advance(("orders", 0), high_watermark=100)
        found = list(client.results("nightly"))
    assert sorted(id_ for batch in found for id_ in batch.operation_ids) == list(range(21, 41))
    assert {outcome for batch in found for outcome in batch.results.outcomes} == {Outcome.SATISFIED}


def test_rows_that_are_kept_back_do_not_move(tmp_path: Path) -> None:
    """Their time has not come, and a daemon has none for them: the error says what to do."""
    shard = Shard(1_000)
    wait = {"at_ms": 5_000, "kind": PRODUCE, "operation_id": 1, "item": 0, "item_count": 1, "topic": "t", "offset": 1}
    shard.play(pa.Table.from_pylist([wait | {"partition": 0}], schema=ROWS))
    with pytest.raises(LoadCannotMove, match="kept back"):
        journal_of_shards([shard_bytes.to_bytes(shard)], tmp_path / "journal")
    with pytest.raises(LoadCannotMove, match="no journal"):
        shard_of_journal(tmp_path / "journal")
