"""The real daemon with an archive: a normal life, kills during work, and unusable locations. Its contents can be
replayed, and read as documented.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest

from purgatory.extension import own_settings
from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.extension import WithArchive
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.flags import read_command_line
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.archive.archive_kit import ArchivedHost, Replay, Row, produces, rows_of, without
from tests.histories.history import run_history
from tests.kit.daemon import DaemonProcess, StartDaemon, children_of, daemon_environment, is_running, run_to_end
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.messages import advance_request, high_watermark, mark_batch, produce_columns
from tests.kit.served_host import apply_events
from tests.service.test_daemon import fetch_page, sums_by_kind

EACH = 50
"""Number of waits that a caller registers and completes at a time."""


class ArchivedCaller:
    """Registers and completes waits at a daemon, and remembers the accepted ones."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._channel = grpc.insecure_channel(daemon.address)
        self._stub = PurgatoryServiceStub(self._channel)
        self.last_id = 0

    def work(self) -> None:
        ids = range(self.last_id + 1, self.last_id + EACH + 1)
        self.last_id = ids[-1]
        batch = produce_columns(ids, offset=self.last_id)
        request = wire.RegisterRequest(session_id="caller", batch=batch)
        assert self._stub.Register(request).receipt.accepted == EACH
        assert sum(self._stub.Advance(advance_request(high_watermark("orders", self.last_id))).receipt.ended) == EACH
        self._stub.Acknowledge(wire.AcknowledgeRequest(session_id="caller", sequence=self.last_id))

    def close(self) -> None:
        self._channel.close()


def files_of(folder: Path, table: str) -> list[Path]:
    return sorted((folder / table).rglob("*.parquet"))


def markers(folder: Path) -> list[tuple[str, str]]:
    """(run, marker), in the order of the runs."""
    return [(row["run_id"], row["marker"]) for row in rows_of(folder, schema.MARKERS)]


def test_a_life_from_start_to_end(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """All calls are recorded between STARTED and ENDED, and replaying them produces the same outcomes.

    The code that builds rows and files is loaded in the writer process only, without the rest of the daemon.
    """
    folder = tmp_path / "archive"
    daemon = start_daemon("--archive", str(folder), "--engine-tick-ms", "3", "--limits-partitions-max", "77")
    caller = ArchivedCaller(daemon)
    for _ in range(10):
        caller.work()
    caller.close()
    own, writers = (Path(f"/proc/{who}/maps").read_text("utf-8") for who in (daemon.process.pid, writer_of(daemon)))
    assert ("libarrow" in own, "libarrow" in writers) == (False, True)
    assert ("cygrpc" in own, "cygrpc" in writers) == (True, False)
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


def writer_of(daemon: DaemonProcess) -> int:
    [writer_id] = children_of(daemon.process.pid)
    return writer_id


def crashed_in(folder: Path) -> Row:
    [crashed] = [row for row in rows_of(folder, schema.MARKERS) if row["marker"] == schema.CRASHED]
    return crashed


def assert_kept_up_to(folder: Path, crashed: Row) -> None:
    """All calls up to that of the marker are there, and all files are complete."""
    for table in schema.TABLES:
        for path in files_of(folder, table):
            assert pq.ParquetFile(path).read().num_rows > 0
    kept = {row["operation_id"] for row in rows_of(folder, schema.REGISTRATIONS)}
    assert kept == set(range(1, len(kept) + 1))
    calls = {row["call_number"] for table in (schema.REGISTRATIONS, schema.EVENTS) for row in rows_of(folder, table)}
    assert set(range(1, crashed["call_number"] + 1)) <= calls


def read_by(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/io").read_text("ascii").split()[1])


def work_until_sent(caller: ArchivedCaller, writer_id: int) -> None:
    """Work once, and wait until some of it has been sent to the writer process."""
    before = read_by(writer_id)
    caller.work()
    wait_until(lambda: read_by(writer_id) > before + 8 * EACH, "the process has read the registrations")


def test_a_daemon_that_is_killed_leaves_what_it_had_sent(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Its writer process continues until all received rows are in place, and records that the run has crashed."""
    folder = tmp_path / "archive"
    daemon = start_daemon("--archive", str(folder))
    writer_id, caller = writer_of(daemon), ArchivedCaller(daemon)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(writer_id, number)  # every process of a service gets these; the writer ignores them
    work_until_sent(caller, writer_id)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(PATIENCE_S)
    caller.close()
    wait_until(lambda: not is_running(writer_id), "its writer process has ended")
    crashed = crashed_in(folder)
    detail = json.loads(crashed["detail"])
    assert (detail["pid"], detail["found_by"]) == (daemon.process.pid, crashed["run_id"])
    assert_kept_up_to(folder, crashed)
    assert len(rows_of(folder, schema.REGISTRATIONS)) == EACH
    assert list((folder / layout.WRITING).iterdir()) == []


def test_another_writer_goes_on_where_one_was_killed(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Rows that the killed writer had not moved into place are lost and counted in a marker; all others are kept."""
    folder = tmp_path / "archive"
    daemon = start_daemon("--archive", str(folder))
    caller = ArchivedCaller(daemon)
    for died in (1, 2):
        writer_id = writer_of(daemon)
        work_until_sent(caller, writer_id)
        os.kill(writer_id, signal.SIGKILL)
        wait_until(partial(is_another, daemon, writer_id, died), "another one has begun")
    caller.work()
    assert daemon.stop() == 0
    caller.close()
    names = [marker for _, marker in markers(folder)]
    assert (names[0], names[-1]) == (schema.STARTED, schema.ENDED)
    assert set(names[1:-1]) == {schema.DROPPED}
    dropped = sum(row["rows"] for row in rows_of(folder, schema.MARKERS) if row["marker"] == schema.DROPPED)
    in_files = sum(len(rows_of(folder, table)) for table in schema.TABLES if table != schema.MARKERS)
    assert in_files + dropped == 3 * (2 * EACH + 1)  # registrations, outcomes and events
    assert dropped >= 2 * EACH
    assert len(rows_of(folder, schema.OUTCOMES)) >= EACH
    assert list((folder / layout.WRITING).iterdir()) == []


def is_another(daemon: DaemonProcess, before: int, died: int) -> bool:
    """Whether `died` writers have died, and one other than `before` has started."""
    writers = children_of(daemon.process.pid)
    errors = sums_by_kind(fetch_page(daemon, "/metrics")[1], "purgatory_archive_errors_total")
    return sum(errors.values()) >= died and bool(writers) and writers != [before]


def test_a_place_that_is_of_no_use_ends_the_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    place = f"{tmp_path}/file/below"
    ended = run_to_end(tmp_path, ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--archive", place])
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert f"cannot write an archive to {place}: " in line


def test_without_arrow_one_line_names_the_image_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), daemon_environment()["PYTHONPATH"]])}
    place = tmp_path / "archive"
    flags = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--archive", str(place)]
    ended = run_to_end(tmp_path, flags, environment)
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert "an archive needs pyarrow" in line
    assert "purgatory:archive" in line
    assert not place.exists()


def test_archive_is_short_for_archive_uri() -> None:
    for flag in ("--archive", "--archive-uri"):
        line = read_command_line([flag, "s3://bucket/history", "--archive-strict"], "server.py", ALL_SETTINGS)
        archive = own_settings(line.settings, WithArchive).archive
        assert (archive.uri, archive.strict) == ("s3://bucket/history", True)


# The archive contains all calls and results of a host: replayed on a new engine, every operation ends the same way.


@pytest.mark.parametrize("seed", range(8))
def test_a_fresh_engine_ends_everything_the_same_way(seed: int) -> None:
    assert run_history("archive", seed).complaints == []


# The examples in docs/archive.md for reading an archive.

PAGE = Path(__file__).resolve().parents[2] / "docs" / "archive.md"


def examples() -> dict[str, str]:
    """The page's Python examples, by the first word of the line before each."""
    found = re.findall(r"\n(\w+)[^\n]*:\n\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(found)


@pytest.mark.parametrize("tool", ["DuckDB", "pandas"])
async def test_the_page_reads_an_archive(tmp_path: Path, tool: str) -> None:
    """Run in the folder that contains `history`, the example finds both outcomes, which are in two files."""
    pytest.importorskip(tool.lower())
    (tmp_path / "history").mkdir()
    kept = ArchivedHost(tmp_path / "history")
    kept.fill(each=2)
    kept.clock.jump(2_000)
    kept.host.reaper.turn()
    kept.keep_by_hand(2)
    kept.register(produces(3))
    await apply_events(kept.host, mark_batch(10))
    await kept.start_and_close()
    assert len(list((tmp_path / "history" / schema.OUTCOMES).rglob("*.parquet"))) == 2
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", examples()[tool]], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "satisfied" in ended.stdout
    assert "expired" in ended.stdout


def test_the_page_shows_spark_too() -> None:
    assert "spark.read.parquet" in examples()["Spark"]
