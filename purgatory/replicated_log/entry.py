"""Entries of the log: their encoding, the rows in a group, and the parts of a large one."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from purgatory.journal.row_codec import Value
from purgatory.journal.sql_schema import MIGRATIONS, OLDEST, READABLE_FROM
from purgatory.journal.statements import DELETE, ORDER, UPSERT, Statements
from purgatory.replicated_log.errors import LogRefused
from purgatory.v1 import fleet_log_pb2 as pb

LOGGER: Final = logging.getLogger(__name__)

FORMAT: Final = 1
"""The newest version of an entry's encoding that this program reads, and the one that it writes."""

TABLES: Final = len(MIGRATIONS)
"""Version of the journal's tables."""

PART_BYTES_MAX: Final = 900_000
"""Content of one entry. Kafka by default accepts a million bytes, including the entry's other fields."""

_ENCODED: Final = [field.name for field in pb.LogEntry.DESCRIPTOR.fields if field.name != "format"]
"""The fields of an entry that are in its encoding."""


class Kind(IntEnum):
    UNREADABLE = pb.LOG_ENTRY_KIND_UNSPECIFIED
    """Something that is not an entry of a fleet, or damaged."""
    CLAIM = pb.LOG_ENTRY_KIND_CLAIM
    GROUP = pb.LOG_ENTRY_KIND_GROUP
    HEARTBEAT = pb.LOG_ENTRY_KIND_HEARTBEAT
    RESIGNATION = pb.LOG_ENTRY_KIND_RESIGNATION
    ORIGIN = pb.LOG_ENTRY_KIND_ORIGIN


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. The fields are described in fleet_log.proto, except the last three.

    Attributes:
        position: Where it is in the log; -1: not known yet.
        logged_ms: When it was appended, by the clock of the log, in milliseconds since the epoch. 0: not known.
        rows: The content of a whole group, decoded.
    """

    kind: Kind
    epoch: int
    writer: bytes
    number: int = 0
    moment_ms: int = 0
    content: bytes = b""
    more: bool = False
    address: str = ""
    http_address: str = ""
    log_id: bytes = b""
    previous_position: int = -1
    previous_writer: bytes = b""
    tables: int = OLDEST
    position: int = -1
    logged_ms: int = 0
    rows: Statements | None = field(default=None, compare=False, repr=False)

    def to_bytes(self) -> bytes:
        """Encode the entry, without its place in the log."""
        return pb.LogEntry(format=FORMAT, **{name: getattr(self, name) for name in _ENCODED}).SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes, position: int, logged_ms: int) -> "Entry":
        """Decode an entry. Anything else is an entry of the kind UNREADABLE.

        Raises:
            LogRefused: It has a newer format.
        """
        try:
            read = pb.LogEntry.FromString(data)
        except DecodeError:
            read = pb.LogEntry()
        if read.format > FORMAT:
            raise LogRefused(
                f"position {position} of the log has format {read.format}; this program supports up to {FORMAT}: "
                "upgrade it"
            )
        is_entry = read.format > 0 and read.kind in pb.LogEntryKind.values()
        values: dict[str, Any] = {name: getattr(read, name) for name in _ENCODED}
        values["kind"] = Kind(read.kind) if is_entry else Kind.UNREADABLE
        return cls(**values, position=position, logged_ms=logged_ms)

    @classmethod
    def origin(cls) -> "Entry":
        """The first entry of a new log, with a random id."""
        log_id = os.urandom(16)
        return cls(Kind.ORIGIN, 0, log_id, log_id=log_id)

    def at(self, position: int, logged_ms: int) -> "Entry":
        """The same entry at its place in the log."""
        return replace(self, position=position, logged_ms=logged_ms)

    def parts(self, bytes_max: int = PART_BYTES_MAX) -> Iterator["Entry"]:
        """Split an entry by its content. `Reign` joins the parts again.

        Yields:
            Entries with consecutive numbers; all but the last one have `more`. A small entry is its only part.
        """
        for part, start in enumerate(range(0, max(1, len(self.content)), bytes_max)):
            end = start + bytes_max
            yield replace(
                self, number=self.number + part, content=self.content[start:end], more=end < len(self.content)
            )


def pack_rows(statements: Statements) -> tuple[bytes, int]:
    """Encode what `StatementBuilder` made of a group, as the content of an entry. It names tables, because the SQL of
    another version differs. With it, the oldest version of the tables whose programs understand it.
    """
    rows = pb.LogRows()
    for table, upsert in UPSERT.items():
        put, deleted = statements[upsert], statements[DELETE[table]] if table in DELETE else []
        if put or deleted:
            rows.tables.append(pb.TableRows(table=table, put=map(_row, put), deleted=map(_row, deleted)))
    return rows.SerializeToString(), max(READABLE_FROM[one.table] for one in rows.tables)


def unpacked(entry: Entry) -> Entry | None:
    """Return a whole group with its rows; None if they cannot be decoded."""
    try:
        return replace(entry, rows=unpack_rows(entry.content))
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        LOGGER.warning("position %d of the log cannot be decoded (%r), and does not count", entry.position, error)
        return None


def unpack_rows(content: bytes) -> Statements:
    """The statements that apply a whole group with this content. They are idempotent. Raises as `unpacked` expects."""
    statements: Statements = {sql: [] for sql in ORDER}
    for rows in pb.LogRows.FromString(content).tables:
        for sql_of, changed in ((UPSERT, rows.put), (DELETE, rows.deleted)):
            if changed:
                sql = sql_of[rows.table]
                read = [_values(row) for row in changed]
                if {*map(len, read)} != {sql.count("?")}:
                    raise ValueError(f"rows of table {rows.table} have too many values, or too few")
                statements[sql].extend(read)
    if len(statements[UPSERT["moment"]]) != 1:
        raise ValueError("a group without its moment")
    return statements


def _row(values: tuple[Any, ...]) -> pb.TableRow:
    return pb.TableRow(values=map(_value, values))


def _value(value: Value) -> pb.RowValue:
    if isinstance(value, int):
        return pb.RowValue(number=value)
    return pb.RowValue(text=value) if isinstance(value, str) else pb.RowValue(bytes=value)


def _values(row: pb.TableRow) -> tuple[Any, ...]:
    return tuple(getattr(value, value.WhichOneof("value")) for value in row.values)
