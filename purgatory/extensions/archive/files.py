"""Archive writer: record batches in, Parquet files out. A file becomes visible to readers only when it is complete.

A file is encoded in memory. When it is rolled, it is written in one go under `_writing/` and then moved to its final
folder. A write that fails can therefore be retried, and a table never contains a partial file. Files roll by time, by
size, and when the hour changes: no file spans two hours.

    writer = ArchiveWriter(*open_archive("s3://bucket/archive"), new_run_id())
    writer.write(OUTCOMES, rows)
    if writer.is_due:             # check after each write, and periodically
        writer.roll()
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.extensions.archive import layout
from purgatory.extensions.archive.rows import plain
from purgatory.extensions.archive.schema import SCHEMAS, VERSION
from purgatory.extensions.archive.table_columns import DELTA, FEW_VALUES, TABLE_COLUMNS, WORD
from purgatory.extensions.archive.vocabulary import CannotArchive
from purgatory.extensions.archive.writer_protocol import WriterStatistics

ROLL_S: Final = 60.0
ROLL_BYTES: Final = 64 * 1024 * 1024
ROWS_PER_GROUP: Final = 128 * 1024
BATCHES_WAITING_MAX: Final = 256
"""Pending record batches are merged into one at this count: a batch takes kilobytes even if it has few rows."""
HOUR_MS: Final = 3_600_000
COMPRESSION: Final = "snappy"
"""Produces a third to a half more bytes than zstd on a realistic history, for a quarter less work."""

CANNOT_WRITE: Final = (OSError, pa.ArrowException)
"""Exceptions that a filesystem may raise."""


def open_archive(place: str) -> tuple[fs.FileSystem, str]:
    """Resolve a path or URI (file, s3, gs, hdfs, ...) to a filesystem and a folder, and create the folder.

    Raises `CannotArchive` if the folder cannot be reached or written to.
    """
    try:
        if "://" in place:
            filesystem, root = fs.FileSystem.from_uri(place)
        else:
            filesystem, root = fs.LocalFileSystem(), str(Path(place).absolute())
        filesystem.create_dir(f"{root}/{layout.WRITING}", recursive=True)
        probe = f"{root}/{layout.WRITING}/{secrets.token_hex(8)}.probe"
        with filesystem.open_output_stream(probe) as stream:
            stream.write(b"purgatory")
        filesystem.delete_file(probe)
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CannotArchive(f"cannot write an archive to {place}: {reason}") from None
    return filesystem, root


class TableFile:
    """A file being encoded, for one table and one hour."""

    def __init__(self, table: str, run_id: str, number: int, hour: int) -> None:
        self.table: Final = table
        self.hour: Final = hour
        self.name: Final = layout.file_name(run_id, number)
        self.folder: Final = layout.folder(table, datetime.fromtimestamp(hour * HOUR_MS / 1_000, UTC))
        self.unfinished_path: Final = layout.unfinished_path(table, run_id, number)
        self.rows = 0
        self.content: bytes
        self.is_written = False
        """Whether the whole file has been written under `_writing/`."""
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._sink: Final = pa.BufferOutputStream()
        metadata = {
            layout.VERSION_KEY: str(VERSION).encode(),
            layout.TABLE_KEY: table.encode(),
            layout.RUN_KEY: run_id.encode(),
            layout.FILE_NUMBER_KEY: str(number).encode(),
            layout.CHECKSUMS_KEY: layout.UNSEALED,
        }
        columns = TABLE_COLUMNS[table]
        fields = zip(SCHEMAS[table], columns, strict=True)
        self._schema: Final = pa.schema([field.with_nullable(column.has_nulls) for field, column in fields], metadata)
        self._writer: Final = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=COMPRESSION,
            use_dictionary=[one.name for one in columns if one.type_name == WORD or one.encoding == FEW_VALUES],
            write_page_checksum=True,
            write_statistics=[one.name for one in columns if one.has_statistics],
            column_encoding={one.name: "DELTA_BINARY_PACKED" for one in columns if one.encoding == DELTA},
        )

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROWS_PER_GROUP:
            self._encode()
        elif len(self._waiting) >= BATCHES_WAITING_MAX:
            self._waiting = self._joined().combine_chunks().to_batches()

    def finish(self) -> None:
        """Complete the file; `content` is valid from now on."""
        if self._waiting:
            self._encode()
        self._writer.close()
        self.content = layout.sealed(self._sink.getvalue().to_pybytes())

    def _joined(self) -> pa.Table:
        # Dictionaries are unified because pyarrow writes batches with different dictionaries as plain strings.
        return pa.Table.from_batches(self._waiting).unify_dictionaries()

    def _encode(self) -> None:
        self._writer.write_table(pa.Table.from_arrays(self._joined().columns, schema=self._schema), ROWS_PER_GROUP)
        self._waiting, self._waiting_rows = [], 0


class ArchiveWriter:
    """Writes the files of one run; `statistics` count the files that are in place."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        root: str,
        run_id: str,
        *,
        roll_s: float = ROLL_S,
        roll_bytes: int = ROLL_BYTES,
        statistics: WriterStatistics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id: Final = run_id
        self.filesystem: Final = filesystem
        self.root: Final = root
        self.statistics: Final = statistics or WriterStatistics()
        self._roll_s: Final = roll_s
        self._roll_bytes: Final = roll_bytes
        self._clock: Final = clock
        self._open: Final[dict[str, TableFile]] = {}
        self._opened_s = 0.0
        """When the oldest open file was begun (seconds, `clock`)."""
        self._finished: Final[list[TableFile]] = []

    @property
    def is_due(self) -> bool:
        if self._finished or not self._open:
            return bool(self._finished)
        return self._clock() - self._opened_s >= self._roll_s or any(
            file.size >= self._roll_bytes for file in self._open.values()
        )

    def write(self, table: str, rows: pa.RecordBatch) -> None:
        """Append rows, in memory only. Call `roll` when `is_due`."""
        for hour, part in by_hour(rows):
            file = self._open.get(table)
            if file is not None and file.hour != hour:
                self._finish(table)
                file = None
            (file or self._begin(table, hour)).write(part)

    def roll(self) -> None:
        """Finish all open files, then move them and any files left from earlier failures into place, in order.

        Raises OSError (or ArrowException) if a file cannot be written. Such files are kept for the next call.
        """
        for table in list(self._open):
            self._finish(table)
        for file in self._finished:
            if not file.is_written:
                self._write_aside(file)
        while self._finished:
            self._place(self._finished[0])
            del self._finished[0]

    def _begin(self, table: str, hour: int) -> TableFile:
        if not self._open:
            self._opened_s = self._clock()
        self.statistics.file_numbers[table] += 1
        file = self._open[table] = TableFile(table, self.run_id, self.statistics.file_numbers[table], hour)
        return file

    def _finish(self, table: str) -> None:
        file = self._open.pop(table)
        file.finish()
        self._finished.append(file)

    def _write_aside(self, file: TableFile) -> None:
        path = f"{self.root}/{file.unfinished_path}"
        try:
            self.filesystem.create_dir(f"{self.root}/{layout.WRITING}", recursive=True)
            with self.filesystem.open_output_stream(path) as stream:
                stream.write(file.content)
            if self.filesystem.type_name == "local":
                with Path(path).open("rb") as written:
                    os.fsync(written.fileno())  # otherwise a power failure could leave an empty file in place
        except CANNOT_WRITE:
            with contextlib.suppress(*CANNOT_WRITE):
                self.filesystem.delete_file(path)  # a full disk may need the space that the partial file takes
            raise
        file.is_written = True

    def _place(self, file: TableFile) -> None:
        self.filesystem.create_dir(f"{self.root}/{file.folder}", recursive=True)
        try:
            self.filesystem.move(f"{self.root}/{file.unfinished_path}", f"{self.root}/{file.folder}/{file.name}")
        except CANNOT_WRITE:
            file.is_written = False
            raise
        self.statistics.files += 1
        self.statistics.rows_kept[file.table] += file.rows
        self.statistics.bytes += len(file.content)


def by_hour(rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """Split rows where the hour (since 1970) of `at` changes; nearly always the result has one part."""
    instants = plain(rows.column("at"), np.dtype(np.int64))
    if instants.min() // HOUR_MS == instants.max() // HOUR_MS:
        return [(int(instants[0] // HOUR_MS), rows)]
    hours = instants // HOUR_MS
    starts = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(hours)]
    return [(int(hours[start]), rows.slice(start, stop - start)) for start, stop in pairwise(starts) if stop > start]
