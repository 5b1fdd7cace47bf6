"""Reads the archive's files into chunks: only the columns that a replay needs, and no Python object for any row."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine import codes
from purgatory.engine.kinds.operation_columns import default_of
from purgatory.extensions.archive.schema import (
    ACCEPTED,
    CALL_NAMES,
    CALLS,
    EVENTS,
    NO_PARTITION,
    OUTCOMES,
    REGISTRATIONS,
)
from purgatory_pipeline.analytics.archive.footer import open_parquet
from purgatory_pipeline.analytics.archive.integers import distinct_places
from purgatory_pipeline.analytics.archive.location import Location, first_line
from purgatory_pipeline.analytics.replay.load.row_chunk import DEFAULTS, Column, Name, RowChunk, in_order
from purgatory_pipeline.errors import ArchiveUnusable

COMMON: Final = {"call_number": "call", "time_ms": "time"}
OPERATION: Final = {"session_number": "session", "operation_id": "operation"}
NUMBERS: Final[dict[str, dict[str, str]]] = {
    REGISTRATIONS: {
        **COMMON,
        **OPERATION,
        **{name: name for name in ("timeout_ms", "offset", *DEFAULTS[REGISTRATIONS])},
    },
    OUTCOMES: {**COMMON, **OPERATION, **{name: name for name in ("waited_ms", *DEFAULTS[OUTCOMES])}},
    EVENTS: {**COMMON, **{name: name for name in DEFAULTS[EVENTS] if name != "copy"}},
    CALLS: {**COMMON, "session_number": "session"},
}
"""Columns of numbers, and their names in a chunk."""

CALL_CODES: Final = {name: place for place, name in enumerate(CALL_NAMES)}
WORDS: Final[dict[str, tuple[str, dict[str, int]]]] = {
    REGISTRATIONS: ("kind", {name: code for code, name in codes.KIND_NAMES.items()}),
    OUTCOMES: ("outcome", {name: code for code, name in codes.OUTCOME_NAMES.items()}),
    EVENTS: ("type", {name: code for code, name in codes.EVENT_NAMES.items()}),
    CALLS: ("call", CALL_CODES),
}
"""The column of each table that holds one of a few words, with their codes. A chunk of calls names it `what`."""

SETS: Final = ("replicas", "in_sync", "proposed", "leader_id", "min_in_sync_replicas")
NAMED: Final = ("topic", "partition")

OFFSET_DEFAULTS: Final = np.array([0, *(default_of("offset", kind) for kind in codes.KINDS)])
"""Indexed by kind."""

REFUSED_REGISTRATIONS: Final = "refused registrations"
REFUSED_EVENTS: Final = "refused events"
UNREADABLE: Final = "rows of an unknown word"


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


def chunk_of(table: str, part: pa.Table, counts: Counter[str]) -> RowChunk:
    """The rows of an Arrow table that take part in a replay; others are counted in `counts`."""
    columns: dict[str, Column] = {}
    word, known = WORDS[table]
    own_word = "what" if table == CALLS else word
    columns[own_word] = word_codes(part.column(word), known)
    for name, own in NUMBERS[table].items():
        if name not in part.column_names:
            continue
        values = numbers(part.column(name), null_value(table, own, columns[own_word]))
        default = DEFAULTS[table].get(own)
        if values is not None and (default is None or not bool(np.all(values == default))):
            columns[own] = values
    kept = columns[own_word] >= 0
    counts[UNREADABLE] += int(np.count_nonzero(~kept))
    if "refusal_code" in part.column_names:
        kept &= _accepted(part, table, columns, counts)
    chunk = RowChunk(table, columns)
    if "topic" in part.column_names:
        topics, partitions = part.column("topic"), part.column("partition")
        chunk.names, columns["name"] = name_places(topics, partitions)
    if table == EVENTS:
        chunk.detail_rows, chunk.details = _sets(part, columns["type"])
    elif table == CALLS:
        chunk.detail_rows = np.arange(part.num_rows)
        chunk.details = part.column("operation_ids").to_pylist()
    if not bool(np.all(kept)):
        chunk = chunk.take(kept)
    return in_order(chunk)


def null_value(table: str, name: str, words: Column) -> Any:  # noqa: ANN401 -- one number, or one for each row
    """The replacement of null in a column of numbers."""
    if table == REGISTRATIONS and name == "offset":
        return OFFSET_DEFAULTS[words]
    return DEFAULTS[table].get(name, 0)


def numbers(column: pa.ChunkedArray, default: Any) -> Column | None:  # noqa: ANN401 -- see null_value
    """A column as numbers, null as the default; None if all are null and the default is one number."""
    if column.null_count == len(column) and not isinstance(default, np.ndarray):
        return None if len(column) else np.empty(0, np.int64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not column.null_count:
        return np.asarray(column.to_numpy())
    if not isinstance(default, np.ndarray):
        return np.asarray(pc.fill_null(column, default).to_numpy())
    filled: Column = np.asarray(pc.fill_null(column, 0).to_numpy())
    return np.where(np.asarray(column.is_null().to_numpy()), default, filled)


def word_codes(column: pa.ChunkedArray, known: dict[str, int]) -> Column:
    """The codes of a dictionary-encoded column of words; -1 for unknown words."""
    parts = [np.empty(0, np.int8)]
    for chunk in column.chunks:
        lut = np.array([*(known.get(word, -1) for word in chunk.dictionary.to_pylist()), -1], np.int8)
        places = chunk.indices.fill_null(len(lut) - 1) if chunk.indices.null_count else chunk.indices
        parts.append(lut[places.to_numpy()])
    return np.concatenate(parts)


def name_places(topics: pa.ChunkedArray, partitions: pa.ChunkedArray) -> tuple[list[Name], Column]:
    """The distinct names of rows, and the place of each row's. A row without a topic gets place 0."""
    encoded = topics.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # of no chunks
        return [], np.empty(0, np.int32)
    words = encoded.dictionary.to_pylist()
    nameless = encoded.indices.null_count
    indices = np.asarray((encoded.indices.fill_null(0) if nameless else encoded.indices).to_numpy())
    numbered = numbers(partitions, NO_PARTITION)
    partition = np.full(len(indices), NO_PARTITION) if numbered is None else numbered.astype(np.int64)
    if not words:
        return [("", NO_PARTITION)], np.zeros(len(indices), np.int32)
    lowest = int(partition.min(initial=0))
    span = int(partition.max(initial=0)) - lowest + 1
    keys = indices.astype(np.int64) * span + (partition - lowest)
    distinct, places = distinct_places(keys, len(words) * span)
    return [(words[key // span], key % span + lowest) for key in distinct.tolist()], places


def _accepted(part: pa.Table, table: str, columns: dict[str, Column], counts: Counter[str]) -> Column:
    refusal_codes = numbers(part.column("refusal_code"), ACCEPTED)
    if refusal_codes is None:
        return np.ones(part.num_rows, np.bool_)
    accepted: Column = refusal_codes == ACCEPTED
    refused = ~accepted
    if table == REGISTRATIONS and "item" in columns:
        refused &= columns["item"] == 0
    counts[REFUSED_REGISTRATIONS if table == REGISTRATIONS else REFUSED_EVENTS] += int(np.count_nonzero(refused))
    return accepted


def _sets(part: pa.Table, types: Column) -> tuple[Column, list[Any]]:
    """The replica sets of events that have them, in the order of SETS; events of these types are few."""
    rows = np.flatnonzero((types == codes.IN_SYNC_REPLICAS) | (types == codes.LEADERSHIP))
    if not len(rows) or SETS[0] not in part.column_names:
        return np.empty(0, np.int64), []
    found = part.select(SETS).take(pa.array(rows)).to_pydict()
    return rows, list(zip(*(found[name] for name in SETS), strict=True))
