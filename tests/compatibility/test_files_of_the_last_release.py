"""Files of the last release are read, with everything in them; newer files are refused with the remedy."""

import gzip
import json
import re
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from purgatory_client.blocking import shared_loop
from purgatory_client.errors import InvalidRequest, OutboxError, OutboxReason
from purgatory_client.outbox.outbox_file import VERSION, OutboxFile
from purgatory_client.sources.position_tokens import Positions
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.mark_lineage import FILE_NAME, LineageStore
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.errors import ArchiveUnusable, PipelineError
from purgatory_pipeline.stream import shard_state

from purgatory.extensions.archive import layout, schema
from purgatory.replicated_log.entry import FORMAT, Entry, unpacked
from purgatory.replicated_log.errors import LogRefused
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replica import MARK, Replica, forget_place
from purgatory.v1 import fleet_log_pb2 as pb
from tests.compatibility import RELEASED
from tests.compatibility.make_fixtures import SESSIONS, run_stream
from tests.compatibility.scenario import OFFSETS, POLICY, found
from tests.journal.kit import alter
from tests.kit.daemon import DaemonProcess, access_flags, run_to_end
from tests.kit.faults import NotPossibleHere, WallClock, build_library
from tests.pipeline.conftest import java
from tests.pipeline.stream.simulated_history import StreamFolders

__all__ = ["java"]  # a fixture

FACTS: Final = json.loads((RELEASED / "facts.json").read_text("utf-8"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the files of a daemon and of a client: data, archive, outbox.db, tokens."""
    with tarfile.open(RELEASED / "files.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    """A wall clock that shows when the files were made: the timeouts in them continue by the wall clock."""
    try:
        clock = WallClock(build_library(tmp_path), tmp_path / "wall-step")
    except NotPossibleHere as error:
        pytest.skip(str(error))
    clock.step(FACTS["made_s"] - int(time.time()))
    return clock


def check_daemon(files: Path, clock: WallClock, outbox: Path | None) -> None:
    """A daemon on the data folder has all that callers left there."""
    flags = [*access_flags(files, POLICY), *SESSIONS, "--data-dir", str(files / "data")]
    with DaemonProcess(files / "daemon", flags, clock.environment) as daemon:
        ann, bob = FACTS["tokens"]
        shared_loop().run(found(daemon.address, ann, bob, outbox))


@pytest.mark.slow  # a compiler and a daemon
def test_daemon_and_outbox_continue_where_the_last_release_stopped(files: Path, clock: WallClock) -> None:
    """Pending waits end, no results, values or counts are lost, and tokens are valid."""
    check_daemon(files, clock, files / "outbox.db")


def entries() -> list[Entry]:
    with gzip.open(RELEASED / "fleet-log.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [Entry.from_bytes(bytes.fromhex(content), position, logged_ms) for position, logged_ms, content in rows]


@pytest.mark.slow  # as above
def test_log_of_a_fleet_of_the_last_release_is_followed(files: Path, clock: WallClock) -> None:
    """A standby that follows it has all that callers left, which is shown by a daemon on a copy of its file."""
    shutil.rmtree(files / "data")
    replica, reign = Replica(files / "data"), Reign(None, unpacked)
    for entry in entries():
        judged = reign.accept(entry)
        assert judged is not None, f"the entry at {entry.position} does not count"
        replica.apply(judged, reign.resting)
    replica.release()
    forget_place(files / "data" / "journal.db")
    (files / "data" / MARK).unlink()
    check_daemon(files, clock, None)


def test_archive_of_the_last_release_is_read(files: Path) -> None:
    archive = find_archive(str(files / "archive"))
    assert not archive.set_aside
    rows = dict.fromkeys(schema.TABLES, 0)
    for file in archive.used:
        rows[file.table] += file.rows
    assert rows == {"registrations": 8, "outcomes": 4, "events": 3, "calls": 0, "markers": 2}


def test_state_of_a_stream_of_the_last_release_is_read() -> None:
    shard = shard_state.from_bytes((RELEASED / "shard-state").read_bytes(), 100)
    assert shard.engine is not None
    assert (shard.engine.pending, shard.callers.table.num_rows, shard.horizon_ms) == (1, 1, 1_900)


@pytest.mark.slow  # a Spark
@pytest.mark.usefixtures("java")
def test_stream_of_the_last_release_is_continued(tmp_path: Path) -> None:
    """It continues from its checkpoint: pending operations end as in that release."""
    folders = StreamFolders(tmp_path)
    with tarfile.open(RELEASED / "stream.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    run_stream(folders)
    continued = folders.outcomes()
    folders.results = tmp_path / "expected"
    assert sorted(map(repr, continued)) == sorted(map(repr, folders.outcomes()))
    assert len(continued) == 15


def test_position_tokens_of_the_last_release_are_read() -> None:
    short, long = map(Positions.of_token, FACTS["positions"])
    assert short == Positions(OFFSETS, {"kafka/billing/orders-0": 5})
    assert long == Positions({f"kafka/billing/orders-{number}": number for number in range(64)})


# Newer files.


def newer_journal(files: Path) -> None:
    alter(files / "data" / "journal.db", "PRAGMA user_version = 99")
    ran = run_to_end(files, ["--data-dir", str(files / "data")])
    assert ran.returncode == 1
    raise ValueError(ran.stdout + ran.stderr)


def newer_outbox(files: Path) -> None:
    alter(files / "outbox.db", f"PRAGMA user_version = {VERSION + 1}")
    OutboxFile(files / "outbox.db").close()


def newer_entry(_: Path) -> None:
    read = pb.LogEntry.FromString(entries()[-1].to_bytes())
    read.format = FORMAT + 1
    Entry.from_bytes(read.SerializeToString(), 9, 0)


def newer_archive(files: Path) -> None:
    path = next((files / "archive" / "outcomes").rglob("*.parquet"))
    table = pq.read_table(path)
    version = {layout.VERSION_KEY: str(schema.VERSION + 1).encode()}
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **version}), path)
    find_archive(str(files / "archive"))


def newer_shard(_: Path) -> None:
    octets = (RELEASED / "shard-state").read_bytes()
    shard_state.from_bytes(bytes([shard_state.VERSION + 1]) + octets[1:], 100)


def newer_lineages(files: Path) -> None:
    LineageStore(files).close()
    alter(files / FILE_NAME, "PRAGMA user_version = 99")
    LineageStore(files)


@pytest.mark.slow  # one of them starts a program
@pytest.mark.parametrize(
    ("read", "error", "remedy"),
    [
        (newer_journal, ValueError, "has version 99; .* run the program that wrote it, or a newer one"),
        (newer_outbox, OutboxError, "has version 2, .*; install a newer one"),
        (newer_entry, LogRefused, "has format 2; .*: upgrade it"),
        (newer_archive, ArchiveUnusable, "has schema version 2, .*: use the purgatory-pipeline of the release"),
        (newer_shard, PipelineError, "in format 2; .*: use the one that saved it"),
        (newer_lineages, SourceRefused, "has version 99; .* upgrade it, or remove the file"),
        (lambda _: Positions.of_token(f"at9.{FACTS['positions'][0][4:]}"), InvalidRequest, "at9..*upgrade this"),
    ],
)
def test_files_of_a_newer_release_are_refused_with_the_remedy(
    read: Callable[[Path], None], error: type[Exception], remedy: str, files: Path
) -> None:
    with pytest.raises(error) as refused:
        read(files)
    assert re.search(remedy, str(refused.value), re.DOTALL), refused.value
    if isinstance(refused.value, OutboxError):
        assert refused.value.reason is OutboxReason.TOO_NEW
        with closing(sqlite3.connect(files / "outbox.db")) as database:
            assert database.execute("SELECT count(*) FROM registrations").fetchone() == (2,)
