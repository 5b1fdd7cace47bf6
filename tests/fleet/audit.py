"""Independent audits, which do not run the code under test: which entries of a log count, and whether a daemon's file
has exactly the rows that the log says at the position that it names.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from purgatory.journal.sql_schema import COLUMNS
from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.v1 import fleet_log_pb2 as pb

KEYS: Final = {"partitions": (1, 2), "keys": (1,), "key_values": (1,), "key_principals": (1,)}
"""Columns that identify a row, in tables whose first column is a number without a meaning."""

Rows = dict[tuple[Any, ...], tuple[Any, ...]]


class Counted(NamedTuple):
    """A group that counts, and the position of its last part."""

    position: int
    number: int
    writer: bytes
    content: bytes


def audit(log: Sequence[Entry]) -> list[Counted]:
    """The groups that count, in order. Raises AssertionError if the log contradicts itself.

    Reigns first: the first claim with epoch 1, then the first one after it with epoch 2, and so on. Each reign is then
    looked at alone.
    """
    starts: list[int] = []
    for index, entry in enumerate(log):
        if entry.kind is Kind.CLAIM and entry.epoch == len(starts) + 1:
            starts.append(index)
    groups: list[Counted] = []
    number = 0
    for epoch, (start, end) in enumerate(pairwise([*starts, len(log)]), 1):
        leader = log[start].writer
        parts: list[bytes] = []
        for entry in log[start + 1 : end]:
            is_leaders = entry.kind is not Kind.CLAIM and entry.epoch == epoch and entry.writer == leader
            if not is_leaders or entry.number <= number:
                continue
            assert entry.number == number + 1, f"numbers {number + 1} to {entry.number - 1} are missing"
            number += 1
            if entry.kind is Kind.RESIGNATION:
                break
            if entry.kind is Kind.GROUP:
                parts.append(entry.content)
                if not entry.more:
                    groups.append(Counted(entry.position, number, leader, b"".join(parts)))
                    parts.clear()
    return groups


def read_all(log: ReplicatedLog) -> Iterator[Entry]:
    """Everything that is in the log now."""
    position, end = 0, log.end()
    while position < end:
        for entry in log.read(position, 1.0):
            yield entry
            position = entry.position + 1


def check_files(log: ReplicatedLog, folders: Sequence[Path]) -> int:
    """Check the files of daemons that have ended against a log that was never trimmed. Return its number of groups."""
    groups = audit(list(read_all(log)))
    for folder in folders:
        position, rows = rows_of_file(folder)
        expected = rows_of_log(groups, position)
        for table in COLUMNS:
            assert rows[table] == expected[table], f"{folder}, table {table}, position {position}"
    return len(groups)


def rows_of_log(groups: Sequence[Counted], position: int) -> dict[str, Rows]:
    """The rows of each table after all groups up to a position, by their keys."""
    tables: dict[str, Rows] = {table: {} for table in COLUMNS}
    for group in groups:
        if group.position > position:
            break
        content = pb.LogRows.FromString(group.content)
        for changed in content.tables:
            for put in changed.put:
                row = _values(put)
                tables[changed.table][_key(changed.table, row)] = row
        for changed in content.tables:
            for deleted in changed.deleted:
                tables[changed.table].pop(_values(deleted), None)
    return tables


def rows_of_file(data: Path) -> tuple[int, dict[str, Rows]]:
    """The position that a daemon's file includes, and its rows. The daemon must have ended."""
    database = sqlite3.connect(data / "journal.db")
    try:
        # Empty: it was killed before it had read anything.
        (position,) = database.execute("SELECT position FROM log_place").fetchone() or (-1,)
        tables: dict[str, Rows] = {}
        for table in COLUMNS:
            hidden = 1 if table in KEYS or table == "moment" else 0
            rows = [row[hidden:] for row in database.execute(f"SELECT * FROM {table}")]
            tables[table] = {_key(table, row): row for row in rows}
    finally:
        database.close()
    return position, tables


def _key(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of a row without its meaningless number."""
    if table == "moment":
        return ()
    return row[: len(KEYS.get(table, (0,)))]


def _values(row: pb.TableRow) -> tuple[Any, ...]:
    return tuple(getattr(value, value.WhichOneof("value")) for value in row.values)
