"""Reads the archive's files into chunks: only the columns that a replay needs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.extensions.archive.schema import CALLS, EVENTS, OUTCOMES, REGISTRATIONS
from purgatory_pipeline.analytics.archive.footer import open_parquet
from purgatory_pipeline.analytics.archive.location import Location, first_line
from purgatory_pipeline.engine_rows.arrow_chunks import NAMED, NUMBERS, SETS, WORDS, chunk_of
from purgatory_pipeline.engine_rows.row_chunk import RowChunk
from purgatory_pipeline.errors import ArchiveUnusable


def columns_of(table: str, *, names: bool) -> list[str]:
    """The columns to read of a table; of outcomes, names only if they are asked for."""
    columns = [*NUMBERS[table], WORDS[table][0]]
    if table != OUTCOMES or names:
        columns += NAMED
    if table in (REGISTRATIONS, EVENTS):
        columns.append("refusal_code")
    if table == EVENTS:
        columns += SETS
    if table == CALLS:
        columns.append("operation_ids")
    return columns


class TableReader:
    """A file of the archive, opened once. Raises `ArchiveUnusable` where it cannot be read."""

    def __init__(self, place: Location, path: str, table: str) -> None:
        self.table: Final = table
        self._path: Final = path
        self._parquet: Final = self._read(lambda: open_parquet(place.read(path), ["topic", WORDS[table][0]]))

    @property
    def groups(self) -> int:
        return int(self._parquet.num_row_groups)

    def first_calls(self) -> list[int]:
        """The lowest call of each row group, from its statistics or, without any, from its rows."""
        return [self._first_call(group) for group in range(self.groups)]

    def chunk(
        self, group: int, counts: Counter[str], *, names: bool = False, columns: Sequence[str] | None = None
    ) -> RowChunk:
        """One row group: all that a replay needs (of outcomes `names` too, if asked for), or only some columns."""
        wanted = columns_of(self.table, names=names) if columns is None else [*columns, *NAMED, "refusal_code"]
        part = self._read(lambda: self._parquet.read_row_group(group, columns=wanted, use_threads=False))
        return chunk_of(self.table, part, counts)

    def last_ms(self) -> int:
        """The engine's clock at its last row."""
        times = self._read(
            lambda: self._parquet.read_row_group(self.groups - 1, columns=["time_ms"], use_threads=False)
        )
        return int(pc.max(times.column(0)).as_py() or 0)

    def _first_call(self, group: int) -> int:
        metadata = self._parquet.metadata.row_group(group)
        columns = (metadata.column(place) for place in range(metadata.num_columns))
        statistics = next(column.statistics for column in columns if column.path_in_schema == "call_number")
        if statistics is not None and statistics.has_min_max:
            return int(statistics.min)
        calls = self._read(lambda: self._parquet.read_row_group(group, columns=["call_number"], use_threads=False))
        return int(pc.min(calls.column(0)).as_py() or 0)

    def _read(self, read: Callable[[], Any]) -> Any:  # noqa: ANN401 -- whatever is read
        try:
            return read()
        except (OSError, ValueError, pa.ArrowException) as error:
            message = f"cannot read {self._path}: {first_line(error)}; move it out of the archive"
            raise ArchiveUnusable(message) from error


def chunks_of(files: Iterable[TableReader], counts: Counter[str]) -> Iterator[RowChunk]:
    """All row groups of a run's files, in the order of their first calls, as `windows` needs them."""
    groups = [
        (first_call, place, group, file)
        for place, file in enumerate(files)
        for group, first_call in enumerate(file.first_calls())
    ]
    for _, _, group, file in sorted(groups, key=lambda entry: entry[:3]):
        chunk = file.chunk(group, counts)
        if len(chunk):
            yield chunk
