"""The real daemon with an archive: a life from start to end, a kill in the middle of work, a place of no use."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest

from purgatory.archive import layout, schema
from purgatory.archive.run_details import RunDetails
from purgatory.service.flags import read_command_line
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.conftest import StartDaemon
from tests.daemon_process import DEADLINE_S, DaemonProcess, daemon_environment, run_to_end
from tests.service.archive_replay import Replay, rows_of, without

NAMES = [operation_pb2.TopicPartition(topic="orders", partition=number) for number in range(4)]


class Caller:
    """Registers and completes waits at a daemon, and knows which were accepted."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._channel = grpc.insecure_channel(daemon.address)
        self._stub = PurgatoryServiceStub(self._channel)
        self._offset = 0
        self.last_id = 0

    def work(self) -> None:
        """Registers 50 waits and completes them."""
        ids = range(self.last_id + 1, self.last_id + 51)
        self._offset += 1
        columns = operation_pb2.OperationColumns(
            kind=operation_pb2.OPERATION_KIND_PRODUCE,
            partitions=NAMES,
            operation_id=ids,
            item_index=[number % len(NAMES) for number in ids],
            offset=[self._offset],
        )
        request = wire.RegisterRequest(session_id="caller", batch=wire.RegisterBatch(batch_id=1, columns=columns))
        assert self._stub.Register(request).receipt.accepted == 50
        self.last_id = ids[-1]
        marks = event_pb2.EventColumns(
            partitions=NAMES,
            type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * len(NAMES),
            item_index=range(len(NAMES)),
            offset=[self._offset],
        )
        assert sum(self._stub.Advance(wire.AdvanceRequest(columns=marks)).receipt.ended) == 50
        self._stub.Acknowledge(wire.AcknowledgeRequest(session_id="caller", sequence=self.last_id))

    def work_until(self, condition: Callable[[], bool], what: str) -> None:
        """Works until a condition holds; fails when it does not hold in time."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"never came to hold: {what}"
            self.work()

    def close(self) -> None:
        self._channel.close()


def files_of(folder: Path, table: str) -> list[Path]:
    return sorted((folder / table).rglob("*.parquet"))


def markers(folder: Path) -> list[tuple[str, str]]:
    """(run, marker), in the order of the runs."""
    return [(row["run_id"], row["marker"]) for row in rows_of(folder, schema.MARKERS)]


def test_a_life_from_start_to_end(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """All that callers did is there, replays to the same outcomes, and stands between STARTED and ENDED."""
    folder = tmp_path / "archive"
    daemon = start_daemon("--archive", str(folder), "--engine-tick-ms", "3", "--limits-partitions-max", "77")
    caller = Caller(daemon)
    for _ in range(10):
        caller.work()
    caller.close()
    assert daemon.stop() == 0
    assert [marker for _, marker in markers(folder)] == [schema.STARTED, schema.ENDED]
    started = rows_of(folder, schema.MARKERS)[0]
    details = RunDetails.from_json(started["detail"])
    assert (details.tick_ms, details.limits["partitions_max"], details.pid) == (3, 77, daemon.process.pid)
    assert [row["operation_id"] for row in rows_of(folder, schema.REGISTRATIONS)] == list(range(1, 501))
    outcomes = rows_of(folder, schema.OUTCOMES)
    assert len(outcomes) == 500
    assert without(Replay(folder).outcomes, "at") == without(outcomes, "at")
    assert list((folder / layout.WRITING).iterdir()) == []


@pytest.mark.slow  # two daemons, three rolls
def test_after_a_kill_every_file_is_whole_and_only_the_last_interval_is_missing(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """SIGKILL in the middle of work: what was rolled is there and readable; the next start says where it ends."""
    folder = tmp_path / "archive"
    daemon = start_daemon("--archive", str(folder), "--archive-roll-ms", "100")
    caller = Caller(daemon)
    caller.work_until(lambda: len(files_of(folder, schema.OUTCOMES)) >= 1, "a roll is done")
    accepted, rolls = caller.last_id, len(files_of(folder, schema.OUTCOMES))
    caller.work_until(lambda: len(files_of(folder, schema.OUTCOMES)) >= rolls + 2, "two more are done")
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(DEADLINE_S)
    caller.close()
    for table in schema.TABLES:
        for path in files_of(folder, table):
            assert pq.ParquetFile(path).read().num_rows > 0
    registrations = rows_of(folder, schema.REGISTRATIONS)
    kept = {row["operation_id"] for row in registrations}
    assert kept == set(range(1, len(kept) + 1))
    assert len(kept) >= accepted
    [(run_id, _)] = markers(folder)
    half = folder / layout.unfinished_path(schema.OUTCOMES, run_id, 999)
    half.write_bytes(b"PAR1")
    assert start_daemon("--archive", str(folder)).stop() == 0
    assert (run_id, schema.CRASHED) in markers(folder)
    [crashed] = [row for row in rows_of(folder, schema.MARKERS) if row["marker"] == schema.CRASHED]
    assert json.loads(crashed["detail"])["pid"] == daemon.process.pid
    calls = {row["call_number"] for table in (schema.REGISTRATIONS, schema.EVENTS) for row in rows_of(folder, table)}
    assert set(range(1, crashed["call_number"] + 1)) <= calls
    assert list((folder / layout.WRITING).iterdir()) == []


@pytest.mark.parametrize("place", ["{file}/below", "nonsense://x"])
def test_a_place_that_is_of_no_use_ends_the_start_in_one_line(tmp_path: Path, place: str) -> None:
    """Exit code 1, the place and the reason, and no traceback."""
    file = tmp_path / "file"
    file.write_text("no folder")
    place = place.format(file=file)
    ended = run_to_end(tmp_path, ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--archive", place])
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert f"cannot write an archive to {place}: " in line


def test_without_an_archive_arrow_is_not_imported() -> None:
    """A daemon that keeps no history does not pay for it."""
    code = "import sys, purgatory.daemon; print([name for name in ('pyarrow', 'numpy') if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=daemon_environment(), capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_archive_is_short_for_archive_uri() -> None:
    """Both flags are the same setting."""
    for flag in ("--archive", "--archive-uri"):
        archive = read_command_line([flag, "s3://bucket/history", "--archive-strict"], "server.py").settings.archive
        assert (archive.uri, archive.strict) == ("s3://bucket/history", True)
