"""Entries of the log: their encoding, the rows in a group, and the parts of a large one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from purgatory.fleet.errors import EntryTooNew, LogRefused
from purgatory.journal.row_codec import Value
from purgatory.journal.sql_schema import MIGRATIONS
from purgatory.journal.statements import DELETE, ORDER, UPSERT, Statements
from purgatory.v1 import fleet_log_pb2 as pb

FORMAT: Final = 1
"""The newest version of an entry's encoding that this program reads, and the one that it writes."""

TABLES: Final = len(MIGRATIONS)
"""Version of the journal's tables."""

PART_BYTES_MAX: Final = 900_000
"""Content of one entry. Kafka by default accepts a million bytes, including the entry's other fields."""


class Kind(IntEnum):
    """The purpose of an entry."""

    CLAIM = pb.LOG_ENTRY_KIND_CLAIM
    GROUP = pb.LOG_ENTRY_KIND_GROUP
    HEARTBEAT = pb.LOG_ENTRY_KIND_HEARTBEAT
    RESIGNATION = pb.LOG_ENTRY_KIND_RESIGNATION


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. The fields are described in fleet_log.proto, except the last two.

    Attributes:
        position: Where it is in the log; -1: not known yet.
        logged_ms: When it was appended, by the clock of the log, in milliseconds since the epoch. 0: not known.
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
    tables: int = TABLES
    position: int = -1
    logged_ms: int = 0

    def to_bytes(self) -> bytes:
        """Encode the entry, without its place in the log."""
        return pb.LogEntry(
            format=FORMAT, tables=self.tables, kind=self.kind.value, epoch=self.epoch, number=self.number,
            writer=self.writer, moment_ms=self.moment_ms, content=self.content, more=self.more, address=self.address,
            http_address=self.http_address,
        ).SerializeToString()  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes, position: int, logged_ms: int) -> "Entry":
        """Decode an entry.

        Raises:
            EntryTooNew: It has a newer format.
            LogRefused: It is not an entry.
        """
        try:
            read = pb.LogEntry.FromString(data)
        except DecodeError:
            read = pb.LogEntry()
        if read.format > FORMAT:
            raise EntryTooNew(
                f"position {position} of the log has format {read.format}; this program supports up to {FORMAT}: "
                "upgrade it"
            )
        try:
            kind = Kind(read.kind)
        except ValueError:
            raise LogRefused(f"position {position} of the log does not contain an entry of a fleet") from None
        return cls(
            kind, read.epoch, read.writer, read.number, read.moment_ms, read.content, read.more, read.address,
            read.http_address, read.tables, position, logged_ms,
        )  # fmt: skip

    def at(self, position: int, logged_ms: int) -> "Entry":
        """The same entry at its place in the log."""
        return replace(self, position=position, logged_ms=logged_ms)

    def is_copy_of(self, other: "Entry") -> bool:
        """Whether both are the same entry, possibly at different places."""
        return self.at(other.position, other.logged_ms) == other

    def parts(self, bytes_max: int = PART_BYTES_MAX) -> Iterator["Entry"]:
        """Split an entry by its content. `Reign` joins the parts again.

        Args:
            bytes_max: Content of each part.

        Yields:
            Entries with consecutive numbers; all but the last one have `more`. A small entry is its only part.
        """
        for part, start in enumerate(range(0, max(1, len(self.content)), bytes_max)):
            end = start + bytes_max
            yield replace(
                self, number=self.number + part, content=self.content[start:end], more=end < len(self.content)
            )


def pack_rows(statements: Statements) -> bytes:
    """Encode what `StatementBuilder` made of a group, as the content of an entry.

    Args:
        statements: Parameters by SQL text. Tables are named in the entry, because the SQL of another version differs.
    """
    rows = pb.LogRows()
    for table, upsert in UPSERT.items():
        put, deleted = statements[upsert], statements[DELETE[table]] if table in DELETE else []
        if put or deleted:
            rows.tables.append(pb.TableRows(table=table, put=map(_row, put), deleted=map(_row, deleted)))
    return rows.SerializeToString()


def unpack_rows(entry: Entry) -> Statements:
    """The statements that apply a group. They are idempotent.

    Args:
        entry: A whole group.

    Raises:
        LogRefused: The content cannot be decoded.
    """
    statements: Statements = {sql: [] for sql in ORDER}
    try:
        for rows in pb.LogRows.FromString(entry.content).tables:
            for sql_of, changed in ((UPSERT, rows.put), (DELETE, rows.deleted)):
                if changed:
                    statements[sql_of[rows.table]].extend(map(_values, changed))
    except (DecodeError, KeyError) as error:
        raise LogRefused(f"the rows at position {entry.position} of the log cannot be read: {error!r}") from None
    return statements


def _row(values: tuple[Any, ...]) -> pb.TableRow:
    return pb.TableRow(values=map(_value, values))


def _value(value: Value) -> pb.RowValue:
    if isinstance(value, int):
        return pb.RowValue(number=value)
    return pb.RowValue(text=value) if isinstance(value, str) else pb.RowValue(bytes=value)


def _values(row: pb.TableRow) -> tuple[Any, ...]:
    return tuple(getattr(value, value.WhichOneof("value")) for value in row.values)
