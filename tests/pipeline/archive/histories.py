"""Small intact and broken archives, written row by row with pyarrow."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.extensions.archive import layout, schema

START = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)
"""Wall-clock time at the engine's 0 ms."""

Row = Mapping[str, object]

_ZEROS = {
    "session_number": 1, "session_id": "session-1", "principal": "", "refusal_code": schema.ACCEPTED, "item": 0,
    "item_count": 1, "partition": 0, "lateness_ms": 0, "row": 0, "ended": 0, "error_code": 0,
}  # fmt: skip
"""Default values of columns; all others are null."""


@dataclass
class History:
    """The rows of one run. Calls are numbered automatically; `at_ms` is the engine's clock."""

    run_id: str = "run-a"
    start: datetime = START
    rows: dict[str, list[dict[str, object]]] = field(default_factory=lambda: {table: [] for table in schema.TABLES})
    calls: int = 0

    def add(self, table: str, at_ms: int, /, **values: object) -> dict[str, object]:
        """Adds a row to a table, in a call of its own unless `call_number` is given."""
        self.calls += 0 if "call_number" in values else 1
        own = {name: _ZEROS[name] for name in schema.SCHEMAS[table].names if name in _ZEROS}
        common = {
            "run_id": self.run_id,
            "call_number": self.calls,
            "time_ms": at_ms,
            "at": self.start + timedelta(milliseconds=at_ms),
        }
        row = {**own, **common, **values}
        self.rows[table].append(row)
        return row

    def register(self, operation_id: int, at_ms: int = 0, *, timeout_ms: int = 500, **values: object) -> None:
        """Registers a produce on `orders` that waits for offset 10, unless `values` differ."""
        own = {"kind": "produce", "topic": "orders", "offset": 10, "timeout_ms": timeout_ms}
        self.add(schema.REGISTRATIONS, at_ms, operation_id=operation_id, **{**own, **values})

    def end(self, operation_id: int, at_ms: int, *, waited_ms: int = 0, **values: object) -> None:
        """Ends an operation, as satisfied unless `values` differ."""
        own = {"kind": "produce", "topic": "orders", "outcome": "satisfied", "waited_ms": waited_ms}
        self.add(schema.OUTCOMES, at_ms, operation_id=operation_id, **{**own, **values})

    def event(self, type: str, at_ms: int, **values: object) -> None:  # noqa: A002
        """Adds an event, on partition 0 of `orders` unless `values` differ."""
        self.add(schema.EVENTS, at_ms, type=type, **{"topic": "orders", **values})

    def mark(self, marker: str, at_ms: int = 0, /, **values: object) -> None:
        """Adds a marker. The settings of `started` are empty unless given."""
        values.setdefault("detail", json.dumps({"version": "1", "settings": {}}) if marker == schema.STARTED else "")
        self.add(schema.MARKERS, at_ms, marker=marker, **values)

    def write(self, root: Path, *, rows_per_file: int = 1_000_000) -> list[Path]:
        """Writes all tables, rolled by size, and returns the files."""
        return [
            write_file(root, table, rows[first : first + rows_per_file], self.run_id, number)
            for table, rows in self.rows.items()
            for number, first in enumerate(range(0, len(rows), rows_per_file), 1)
        ]


def write_file(root: Path, table: str, rows: Iterable[Row], run_id: str = "run-a", number: int = 1) -> Path:
    """Writes one complete file. Folder and name follow from its first row."""
    rows = list(rows)
    at = rows[0]["at"] if rows else START
    assert isinstance(at, datetime)
    path = root / layout.folder(table, at.astimezone(UTC)) / layout.file_name(run_id, number)
    return write_table(path, table_of(table, rows), metadata_of(table, run_id, number))


def write_table(path: Path, table: pa.Table, metadata: Mapping[bytes, bytes] | None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def table_of(table: str, rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema.SCHEMAS[table])


def metadata_of(table: str, run_id: str, number: int, version: int = schema.VERSION) -> dict[bytes, bytes]:
    return {
        layout.VERSION_KEY: str(version).encode(),
        layout.TABLE_KEY: table.encode(),
        layout.RUN_KEY: run_id.encode(),
        layout.FILE_NUMBER_KEY: str(number).encode(),
    }


def small_history(run_id: str = "run-a", operations: int = 20, *, ended: bool = True) -> History:
    """One run as an engine lives it: operations registered every 10 ms wait for rising offsets. Each is satisfied 5 ms
    later by the mark that reaches it; every fifth one has expired before that.
    """
    history = History(run_id)
    history.mark(schema.STARTED)
    for number in range(1, operations + 1):
        at_ms = 10 * number
        is_late = number % 5 == 0
        history.register(number, at_ms, timeout_ms=3 if is_late else 500, offset=number)
        if is_late:
            history.end(number, at_ms + 3, waited_ms=3, outcome="expired", error_code=7, reached_offset=number - 1)
        history.event("high_watermark", at_ms + 5, offset=number)
        if not is_late:
            history.end(number, at_ms + 5, waited_ms=5, reached_offset=number, call_number=history.calls)
    if ended:
        history.mark(schema.ENDED, 10 * operations + 10)
    return history
