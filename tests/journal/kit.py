"""Helpers of the journal tests: hosts with a journal, a picture of a host's state, and power cuts."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.journal.continued_time import ClockReading, ReadClocks
from purgatory.journal.crash_points import AFTER_COMMIT, CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.group import Group, Moment
from purgatory.journal.statements import StatementBuilder, Statements
from purgatory.journal.store import Store
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings
from purgatory.service.translate.result_slices import ResultSlice
from purgatory.service.translate.results import fill_batch
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.histories.plan import KEYS, PARTITIONS
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import produce_run

COLUMNS: Final = (
    "operation_ids", "kinds", "registered_ms", "deadlines_ms", "items_left", "item_counts", "required", "marks",
    "epochs", "error_codes", "min_bytes", "replica_ids", "read_committed", "leader_only",
    "max_bytes", "leader_epochs", "last_fetched_epochs", "throttled", "start_segments", "start_reaches",
)  # fmt: skip
"""Without `removed`: items that were resolved before their partition was removed do not record it."""

BOOT: Final = "boot-1"


def clocks_of(clock: ManualClock) -> ReadClocks:
    """All clocks of a machine, driven by one manual clock."""
    return lambda: ClockReading(clock.now_ms(), clock.now_ms(), BOOT)


def statements_of(number: int) -> Statements:
    """A group without changes, whose moment is its number on all clocks."""
    return StatementBuilder().statements(Group(number, Moment(number, number, number, "boot")))


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    """Open a journal, without a thread."""
    directory = Directory(folder)
    try:
        with closing(Store(directory, CrashPoints())) as store:
            yield store
    finally:
        directory.release()


class PowerCut(CrashPoints):
    """Copies the journal's files after a given commit: the state after a power cut at that moment."""

    def __init__(self, folder: Path, copies: Path, group: int) -> None:
        super().__init__()
        self._folder: Final = folder
        self.copy: Final = copies
        self._group: Final = group
        self._commits = 0

    def reached(self, point: str) -> None:
        if point == AFTER_COMMIT:
            self._commits += 1
            if self._commits == self._group:
                copy_files(self._folder, self.copy)


def alter(path: Path, sql: str) -> None:
    """Change a journal's file behind the back of its daemons."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(sql)
        database.commit()


def copy_files(folder: Path, copy: Path) -> None:
    copy.mkdir()
    for name in ("journal.db", "journal.db-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy / name)


async def keep(host: Host, folder: Path, clock: ManualClock) -> OpenJournal:
    """Attach the journal in a folder to a new host, after restoring its contents."""
    opened = OpenJournal(folder, is_sync=True, clocks=clocks_of(clock))
    try:
        await opened.restore(host)
    except JournalError:
        await opened.close(PATIENCE_S)
        raise
    return opened


def register(host: Host, session: Session, offsets: dict[int, int], timeout_ms: int = 60_000) -> None:
    """Register waits on partition t-0 by id and the high watermark that ends each."""
    run = produce_run(offsets, "t", list(offsets.values()), timeout_ms)
    host.gate.check_batch(session, len(offsets), len(offsets))
    host.registration(session).register([run], [])


def new_host(clock: ManualClock) -> Host:
    return Host(Engine(EngineLimits(), clock.now_ms()), clock, HostSettings())


class JournaledHost:
    """A host with a journal in a folder, and its session `a`; `stop` it at the end."""

    def __init__(self, folder: Path, host: Host, opened: OpenJournal, clock: ManualClock) -> None:
        self.folder = folder
        self.host = host
        self.opened = opened
        self.clock = clock

    @classmethod
    async def start(cls, folder: Path) -> JournaledHost:
        clock = ManualClock(1_000)
        host = new_host(clock)
        return cls(folder, host, await keep(host, folder, clock), clock)

    @property
    def session(self) -> Session:
        return self.host.sessions.open("a", self.clock.now_ms())[0]

    async def register(self, offsets: dict[int, int]) -> None:
        """Register waits durably, in the session, as the function `register` does."""
        register(self.host, self.session, offsets)
        await self.host.journal.durable()

    def resume(self, sequence: int) -> list[int]:
        """Reconnect the client with results up to `sequence`. Return the sequence numbers that it is sent."""
        session = self.session
        session.resume(sequence)
        self.host.journal.changed(session)
        session.outbox.rewind()
        session.outbox.release_all()
        first, parts = session.outbox.take(1_000)
        return list(range(first, first + sum(len(part) for part in parts)))

    async def crashed(self) -> JournaledHost:
        """Crash. Return the next host, which gets only the files as they are now."""
        copy = self.folder.with_name(f"{self.folder.name}-copy")
        copy_files(self.folder, copy)
        await self.stop()
        return await self.start(copy)

    async def restarted(self) -> JournaledHost:
        await self.stop()
        return await self.start(self.folder)

    async def stop(self) -> None:
        assert await self.opened.close(PATIENCE_S)


def picture(host: Host) -> dict[str, Any]:
    """The state that a journal must restore."""
    snapshots = host.engine.snapshots
    sessions = {}
    for session in host.sessions._by_id.values():
        outbox = session.outbox
        outbox.check()
        if session.is_blank:
            continue
        results = [row for part in (*outbox._written, *outbox._unwritten) for row in rows_of(part)]
        sessions[session.session_id] = (
            int(session.owner.highest_operation_id),
            outbox.last_sequence,
            outbox.acknowledged_sequence,
            results,
            columns_of(snapshots.save_above(session.owner, 0)),
        )
    return {
        "sessions": sessions,
        "partitions": {name: snapshots.save_partition(name) for name in PARTITIONS},
        "keys": {key: snapshots.save_key(key) for key in KEYS},
    }


def columns_of(saved: SavedOperations) -> dict[str, list[Any]]:
    """All columns of saved operations, with names instead of dictionary indexes."""
    columns = {name: list(getattr(saved, name)) for name in COLUMNS}
    columns["places"] = [tuple(saved.names[place]) for place in saved.places]
    columns["stale_timeouts_ms"] = sorted(saved.stale_timeouts_ms.items())
    columns["heartbeat_timeouts_ms"] = sorted(saved.heartbeat_timeouts_ms.items())
    return columns


def rows_of(part: ResultSlice) -> list[str]:
    """The results of a slice, as a client receives them, without the place of a refused operation in its batch."""
    batch = wire.ResultBatch()
    fill_batch(batch, 1, [part], columns=False)
    for row in batch.rows.results:
        if row.HasField("refusal"):
            row.refusal.ClearField("index")
    return list(map(str, batch.rows.results))
