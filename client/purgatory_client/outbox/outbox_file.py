"""The outbox file: the waits that one client has registered and not yet confirmed, and the results received for them.

SQLite in WAL mode; each commit is synced before it returns. Calls block, so `OutboxWriter` makes them in a thread.

- `session`: one row: the session's id; the next operation id, which never decreases; the highest id that was removed
  from `registrations`; and the session's incarnation when it was last opened.
- `registrations`: a row for each unconfirmed wait or batch of waits, as it was or will be sent.
- `results`: a row for each message of results, as received; deleted once no unconfirmed wait has a result in it.

Each row has a checksum. The process that uses the file holds a lock on `FILE-lock`.

Each time an existing file is opened, its operation ids skip a random number. Two programs that use copies of one file
therefore assign different ids, and each can tell whether the highest id known to the daemon is one of its own.
"""

import fcntl
import os
import secrets
import sqlite3
import uuid
import zlib
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeAlias

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.argument_checks import checked_type
from purgatory_client.errors import OutboxError, OutboxReason

VERSION: Final = 1
IDS_SKIPPED_MAX: Final = 2**31
"""Maximum number of operation ids that are skipped when a file is opened again."""
APPLICATION_ID: Final = 0x50757267
"""The SQLite application id that identifies an outbox: "Purg"."""

SCHEMA: Final = files(__package__).joinpath("tables.sql").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class RegistrationRecord:
    """A wait, or a batch (`is_batch`). `columns`: an encoded OperationColumns. Time: seconds since the epoch."""

    first_operation_id: int
    operations: int
    is_batch: bool
    tag: str
    submitted_time: float
    columns: bytes

    @property
    def checksum(self) -> int:
        head = f"{self.first_operation_id} {self.operations} {self.is_batch} {self.tag} {self.submitted_time!r}"
        return zlib.crc32(self.columns, zlib.crc32(head.encode()))


@dataclass(frozen=True, slots=True)
class ResultsRecord:
    """Results that have arrived: an encoded ResultBatch."""

    batch: bytes


@dataclass(frozen=True, slots=True)
class ConfirmationRecord:
    """The registration with this first id must be deleted."""

    first_operation_id: int


@dataclass(frozen=True, slots=True)
class OpeningRecord:
    """The daemon has opened the session, and its highest known operation id is `highest_operation_id`."""

    incarnation: str
    highest_operation_id: int


Record: TypeAlias = RegistrationRecord | ResultsRecord | ConfirmationRecord | OpeningRecord


@dataclass(slots=True)
class _RegistrationRow:
    """A registration in the file. `places`: the rows of `results` that contain results for it."""

    operations: int
    is_batch: bool
    places: set[int] = field(default_factory=set)


class OutboxFile:
    """An open outbox file. Raises OutboxError.

    Attributes:
        session_id: The id of the session to which all contents of the file belong.
        incarnation: The session's incarnation when it was last opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        checked_type(path, (str, os.PathLike), "outbox", "give the path of a file")
        self.path: Final = Path(path)
        self._lock: Final = LockFile(self.path.with_name(self.path.name + "-lock"), self.path)
        self._rows: Final[dict[int, _RegistrationRow]] = {}
        self._batch_ids: Final[list[int]] = []
        self._holders: Final[dict[int, set[int]]] = {}
        """For each row of `results`, the registrations with results in it."""
        self._database: sqlite3.Connection | None = None
        try:
            with self._typed_errors():
                is_new = self._open()
        except BaseException:
            self.close()
            raise
        if not is_new:
            self._next_operation_id += secrets.randbelow(IDS_SKIPPED_MAX)

    @property
    def next_operation_id(self) -> int:
        """The next operation id. No operation of the session has this id or a higher one."""
        with self._typed_errors():
            self._opened()
        return self._next_operation_id

    def registrations(self) -> list[RegistrationRecord]:
        """All unconfirmed registrations, in the order of ids."""
        with self._typed_errors():
            return self._read_registrations(self._opened())

    def results(self) -> list[bytes]:
        """The stored results, in the order of arrival."""
        with self._typed_errors():
            return [batch for _, batch in self._read_results(self._opened())]

    def commit(self, items: Sequence[Record]) -> None:
        """Write all of the records, or none if it raises. Returns when they are synced to disk."""
        with self._typed_errors():
            database = self._opened()
            database.execute("BEGIN IMMEDIATE")
            for item in items:
                if isinstance(item, RegistrationRecord):
                    self._add(database, item)
                elif isinstance(item, ResultsRecord):
                    self._keep(database, item)
                elif isinstance(item, OpeningRecord):
                    self._check_opening(item)
                    self.incarnation = item.incarnation
                else:
                    self._forget(database, item.first_operation_id)
            database.execute(
                "UPDATE session SET next_operation_id = ?, removed_operation_id = ?, incarnation = ?",
                (self._next_operation_id, self._removed_operation_id, self.incarnation),
            )
            database.execute("COMMIT")

    def close(self) -> None:
        """Release the file. Does nothing if it is already closed."""
        self._drop_database()
        self._lock.close()

    # Opening

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._open()  # after a failed commit, which closed it
        assert self._database is not None, "the outbox is not open"
        return self._database

    def _open(self) -> bool:
        """Open the file, create it if it does not exist, and index its contents. Returns whether it is new.

        Called after a failed write too: how much of it reached the disk is unknown, so the index is rebuilt.
        """
        self._database = database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise OutboxError(
                OutboxReason.TOO_NEW,
                f"{self.path} has version {version}, this client knows up to {VERSION}; install a newer one",
            )
        if version == 0:
            self._make(database)
        elif int(database.execute("PRAGMA application_id").fetchone()[0]) != APPLICATION_ID:
            raise self._damaged(" is a SQLite file, but not an outbox; choose another path")
        sessions = database.execute("SELECT * FROM session").fetchall()
        if len(sessions) != 1:
            raise self._damaged(f" has {len(sessions)} sessions; expected one")
        session_id, next_operation_id, removed_operation_id, incarnation = sessions[0]
        self.session_id, self.incarnation = str(session_id), str(incarnation)
        self._next_operation_id, self._removed_operation_id = int(next_operation_id), int(removed_operation_id)
        self._rows.clear()
        self._batch_ids.clear()
        self._holders.clear()
        self._last_place = 0
        for registration in self._read_registrations(database):
            self._index(registration)
        for place, batch in self._read_results(database):
            self._hold(place, batch)
        return version == 0

    def _make(self, database: sqlite3.Connection) -> None:
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise self._damaged(" is a SQLite file, but not an outbox; choose another path")
        database.executescript(
            f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        )
        database.execute("INSERT INTO session VALUES (?, 1, 0, '')", (uuid.uuid4().hex,))
        database.execute("COMMIT")

    def _read_registrations(self, database: sqlite3.Connection) -> list[RegistrationRecord]:
        found = []
        for row in database.execute("SELECT * FROM registrations ORDER BY first_operation_id"):
            registration = RegistrationRecord(row[0], row[1], bool(row[2]), row[3], row[4], row[5])
            if registration.checksum != row[6]:
                raise self._damaged(f": operation {row[0]} is corrupt (checksum mismatch)")
            found.append(registration)
        return found

    def _read_results(self, database: sqlite3.Connection) -> list[tuple[int, bytes]]:
        found = []
        for place, batch, checksum in database.execute("SELECT * FROM results ORDER BY place"):
            if zlib.crc32(batch) != checksum:
                raise self._damaged(f": results row {place} is corrupt (checksum mismatch)")
            found.append((int(place), bytes(batch)))
        return found

    # Writing

    def _add(self, database: sqlite3.Connection, one: RegistrationRecord) -> None:
        values = (one.operations, one.is_batch, one.tag, one.submitted_time, one.columns, one.checksum)
        database.execute("INSERT INTO registrations VALUES (?, ?, ?, ?, ?, ?, ?)", (one.first_operation_id, *values))
        self._index(one)
        self._next_operation_id = max(self._next_operation_id, one.first_operation_id + one.operations)

    def _keep(self, database: sqlite3.Connection, arrived: ResultsRecord) -> None:
        """Store results, unless no registration needs any of them."""
        place = self._last_place + 1
        if self._hold(place, arrived.batch):
            values = (place, arrived.batch, zlib.crc32(arrived.batch))
            database.execute("INSERT INTO results VALUES (?, ?, ?)", values)

    def _forget(self, database: sqlite3.Connection, first_operation_id: int) -> None:
        row = self._rows.pop(first_operation_id, None)
        if row is None:
            return
        if row.is_batch:
            self._batch_ids.remove(first_operation_id)
        self._removed_operation_id = max(self._removed_operation_id, first_operation_id + row.operations - 1)
        database.execute("DELETE FROM registrations WHERE first_operation_id = ?", (first_operation_id,))
        for place in row.places:
            holders = self._holders[place]
            holders.remove(first_operation_id)
            if not holders:
                del self._holders[place]
                database.execute("DELETE FROM results WHERE place = ?", (place,))

    def _check_opening(self, opening: OpeningRecord) -> None:
        """Raise OutboxError (COPIED) if the daemon knows operations of the session that are not in this file.

        The daemon's highest id was written here before it was sent, and is either still here or was removed. The
        incarnation too is written before anything is registered in it.
        """
        highest = opening.highest_operation_id
        if not highest:
            return
        is_ours = highest <= self._removed_operation_id or self._registration_with(highest) is not None
        if not is_ours or self.incarnation not in ("", opening.incarnation):
            raise OutboxError(
                OutboxReason.COPIED,
                f"the daemon knows operation {highest} of session {self.session_id}, which {self.path} never "
                "registered: it is an older copy of the file, or another program uses a copy. Give each program an "
                "outbox of its own",
            )

    def _index(self, one: RegistrationRecord) -> None:
        self._rows[one.first_operation_id] = _RegistrationRow(one.operations, one.is_batch)
        if one.is_batch:
            insort(self._batch_ids, one.first_operation_id)

    def _hold(self, place: int, batch: bytes) -> bool:
        """Record which registrations have results in this row. Returns False if none does, as for a repeated result."""
        holders = self._holders_of(_operation_ids(batch))
        for first_operation_id in holders:
            self._rows[first_operation_id].places.add(place)
        if holders:
            self._holders[place] = holders
            self._last_place = place
        return bool(holders)

    def _holders_of(self, operation_ids: Iterable[int]) -> set[int]:
        holders = set()
        for operation_id in operation_ids:
            first = self._registration_with(operation_id)
            # A batch may have results in several rows; a single wait needs only the first result that arrived.
            if first is not None and (self._rows[first].is_batch or not self._rows[first].places):
                holders.add(first)
        return holders

    def _registration_with(self, operation_id: int) -> int | None:
        """The first id of the registration that contains this operation; None if it is not in the file."""
        if operation_id in self._rows:
            return operation_id
        place = bisect_right(self._batch_ids, operation_id) - 1
        if place < 0:
            return None
        first = self._batch_ids[place]
        return first if operation_id < first + self._rows[first].operations else None

    # Errors

    def _damaged(self, what: str) -> OutboxError:
        return OutboxError(OutboxReason.DAMAGED, f"{self.path}{what}")

    def _drop_database(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Convert SQLite's errors to this package's. After any error, the next call starts by rereading the file."""
        try:
            yield
        except sqlite3.Error as error:
            self._drop_database()
            name = getattr(error, "sqlite_errorname", "") or ""
            if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
                raise self._damaged(f" is damaged: {error}; move it away, its waits are still at the daemon") from error
            message = f"{self.path} cannot be written: {error} ({name}); nothing was registered"
            raise OutboxError(OutboxReason.UNWRITABLE, message) from error
        except BaseException:
            self._drop_database()
            raise


def _operation_ids(batch: bytes) -> list[int]:
    message = wire.ResultBatch.FromString(batch)
    if message.WhichOneof("shape") == "rows":
        return [row.operation_id for row in message.rows.results]
    return list(message.columns.operation_id)


class LockFile:
    """The lock file of an outbox, which contains its owner's process id. The file remains; the lock ends with the
    process.
    """

    def __init__(self, path: Path, of: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OutboxError(OutboxReason.UNWRITABLE, f"{of}: {error}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace") or "unknown"
            self.close()
            raise OutboxError(
                OutboxReason.IN_USE, f"{of} is in use by process {holder}; each client needs an outbox of its own"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        """Release the lock. Does nothing if it is already released."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
