"""Judges a file of an archive by its footer: its table, run and rows, or why it is set aside."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.extensions.archive import layout, schema
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.location import Location, first_line

# Why a file is set aside.
UNREADABLE: Final = "unreadable"
"""Truncated, damaged, gone, or not Parquet at all."""
FOREIGN: Final = "not a purgatory's"
"""Parquet without a purgatory's metadata, or with columns that are not those of its table."""
MISPLACED: Final = "in another table's folder"
STRAY: Final = "in no table's folder"
COPY: Final = "copy of another file"

_BOUNDED: Final = frozenset({"call_number", "time_ms", "at", "operation_id", "item", "row", "timeout_ms"})

_TAIL_BYTES: Final = 64 * 1024
"""Read at once: more than any footer of the archive."""


def open_parquet(octets: bytes, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """A whole file, once its checksums have been verified. Raises OSError or ArrowException."""
    found = pq.ParquetFile(
        pa.BufferReader(octets), read_dictionary=list(read_dictionary), page_checksum_verification=True
    )
    layout.check_file(octets, found.metadata.metadata or {})
    return found


@dataclass(frozen=True)
class ArchiveFile:
    """A file that is used. Calls and instants are its first and last, if its statistics have them."""

    path: str
    spark_path: str
    table: str
    run_id: str
    file_number: int
    rows: int
    first_call: int | None
    last_call: int | None
    first_at: datetime | None
    last_at: datetime | None
    last_ms: int
    """The engine's clock; 0 if not known."""
    timeout_ms_max: int | None
    """Only of registrations."""
    content: str
    """Equal for equal contents: rows and sizes, and bounds of the columns that identify rows."""


@dataclass(frozen=True)
class Quarantined:
    """A file that is not used: `reason` is a constant above, `detail` what was seen. Rows: None if unknown."""

    path: str
    table: str
    reason: str
    detail: str
    rows: int | None = None

    @property
    def is_copy(self) -> bool:
        """Whether its rows are in another file too."""
        return self.reason == COPY


def read_footer(place: Location, path: str, table: str) -> ArchiveFile | Quarantined:
    """Reads only the end of one file. Raises `ArchiveUnusable` for another schema version."""
    try:
        with place.filesystem.open_input_file(path) as file:
            size = file.size()
            tail = file.read_at(min(_TAIL_BYTES, size), max(size - _TAIL_BYTES, 0))
            if layout.footer_bytes(tail) > len(tail):
                tail = file.read_at(size, 0)
        metadata = pq.read_metadata(pa.BufferReader(tail))
        layout.check_footer(tail, metadata.metadata or {})
        return judge(metadata, path, place.spark_path(path), table)
    except (OSError, ValueError, pa.ArrowException) as error:
        return Quarantined(path, table, UNREADABLE, first_line(error))


def judge(metadata: pq.FileMetaData, path: str, spark_path: str, table: str) -> ArchiveFile | Quarantined:
    """Judges a file by its footer. Raises `ArchiveUnusable` for another schema version."""
    keys = metadata.metadata or {}
    rows = int(metadata.num_rows)
    try:
        version = int(keys[layout.VERSION_KEY])
        own_table, run_id = keys[layout.TABLE_KEY].decode(), keys[layout.RUN_KEY].decode()
        file_number = int(keys[layout.FILE_NUMBER_KEY])
    except (KeyError, ValueError):
        return Quarantined(path, table, FOREIGN, "its metadata lacks a table, run, number or version", rows)
    if version != schema.VERSION:
        raise ArchiveUnusable(
            f"{path} has schema version {version}, but this purgatory-pipeline reads version {schema.VERSION}: "
            "use the purgatory-pipeline of the release that wrote the archive"
        )
    if own_table != table:
        return Quarantined(path, table, MISPLACED, f"it is of the table {own_table!r}", rows)
    complaint = _compare_columns(metadata.schema.to_arrow_schema(), schema.SCHEMAS[table])
    if complaint:
        return Quarantined(path, table, FOREIGN, complaint, rows)
    bounds = _bounds(metadata)
    first_call, last_call = bounds.get("call_number", (None, None))
    first_at, last_at = bounds.get("at", (None, None))
    return ArchiveFile(
        path, spark_path, table, run_id, file_number, rows, first_call, last_call,
        to_utc(first_at), to_utc(last_at), bounds.get("time_ms", (0, 0))[1],
        bounds.get("timeout_ms", (None, None))[1],
        _content(metadata, bounds),
    )  # fmt: skip


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A column's type without its encoding: dictionaries become their values, and list items have no name."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def _compare_columns(found: pa.Schema, wanted: pa.Schema) -> str:
    """The differences between a file's columns and its table's; empty if there are none."""
    have = {field.name: plain_type(field.type) for field in found}
    want = {field.name: plain_type(field.type) for field in wanted}
    missing = [name for name in want if name not in have]
    unknown = [name for name in have if name not in want]
    other = [
        f"{name} is {kind}, not {want[name]}" for name, kind in have.items() if name in want and kind != want[name]
    ]
    complaints = [("it lacks", missing), ("it has unknown", unknown), ("", other)]
    return "; ".join(f"{words} {', '.join(names)}".strip() for words, names in complaints if names)


def _bounds(metadata: pq.FileMetaData) -> dict[str, tuple[Any, Any]]:
    """Smallest and largest value of the columns in `_BOUNDED`, where every row group has statistics."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    bounds: dict[str, tuple[Any, Any]] = {}
    for place, name in enumerate(metadata.schema.names):
        if name not in _BOUNDED:
            continue
        statistics = [group.column(place).statistics for group in groups]
        if statistics and all(one is not None and one.has_min_max for one in statistics):
            bounds[name] = min(one.min for one in statistics), max(one.max for one in statistics)
    return bounds


def _content(metadata: pq.FileMetaData, bounds: dict[str, tuple[Any, Any]]) -> str:
    """Equal for equal contents, almost certainly different for others."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return repr(([(group.num_rows, group.total_byte_size) for group in groups], sorted(bounds.items())))


def to_utc(instant: datetime | None) -> datetime | None:
    """Attaches UTC to an instant without a time zone. Statistics are in UTC, with or without saying so."""
    return instant if instant is None or instant.tzinfo is not None else instant.replace(tzinfo=UTC)
