"""An independent audit of a daemon's file: its rows must be those that the log says, at the position it names."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from purgatory.journal.sql_schema import COLUMNS
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.v1 import fleet_log_pb2 as pb
from tests.fleet.audit import Counted, audit
from tests.fleet.duel import read_all

KEYS: Final = {"partitions": (1, 2), "keys": (1,), "key_values": (1,), "key_principals": (1,)}
"""Columns that identify a row, in tables whose first column is a number without a meaning."""

Rows = dict[tuple[Any, ...], tuple[Any, ...]]


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
