"""Pieces of several calls as one, because to make an Arrow array costs microseconds whatever its length.

What is the same for all of a call, and what is absent, is only counted; whole columns are made of all pieces in the
end. No object is made for a row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.archive.pieces import INT32_MAX, CallStamp, Registrant
from purgatory.archive.schema import SCHEMAS
from purgatory.engine.batches import PartitionName
from purgatory.engine.packed_columns import NAMELESS, ColumnWriter, Layout, Piece

__all__ = ["Gathered", "arrow", "constant", "finish", "plain", "repeated", "spread", "worded"]

ABSENT: Final[list[int]] = []
CONSTANT_ROWS: Final = 16_384
INT32: Final = np.dtype(np.int32)
INT64: Final = np.dtype(np.int64)

Values = list[int] | npt.NDArray[np.int64]
"""A piece of a column: a value for each row as an array, or a list of one for all or of none."""


class Columns:
    """Columns of several pieces."""

    __slots__ = ("_columns", "_counts")

    def __init__(self, names: Sequence[str]) -> None:
        self._counts: Final[list[int]] = []
        """Rows of each piece."""
        self._columns: Final[dict[str, list[Values]]] = {name: [] for name in names}

    def add(self, count: int, columns: list[Values]) -> None:
        """One more piece of so many rows: its columns in the order of the names."""
        self._counts.append(count)
        for pieces, values in zip(self._columns.values(), columns, strict=True):
            pieces.append(values)

    def column(self, name: str, arrow_type: pa.DataType) -> pa.Array:
        """A column of all pieces. What was not given is null."""
        return column(self._columns[name], self._counts, arrow_type)

    def clear(self) -> None:
        """Begins anew."""
        self._counts.clear()
        for pieces in self._columns.values():
            pieces.clear()


def column(pieces: list[Values], counts: Sequence[int], arrow_type: pa.DataType) -> pa.Array:
    """One column of several pieces of so many rows each. Where there is no value, it is null."""
    lengths = {*map(len, pieces)}
    if lengths == {0}:
        return constant(None, arrow_type, sum(counts))
    mask = np.repeat([not len(piece) for piece in pieces], counts) if 0 in lengths else None
    if max(lengths) > 1:
        parts = [
            np.full(count, piece[0] if piece else 0, INT64) if isinstance(piece, list) else piece
            for piece, count in zip(pieces, counts, strict=True)
        ]
        return arrow(np.concatenate(parts), mask, pa.int64()).cast(arrow_type)
    if mask is None:
        return repeated([value for [value] in pieces], counts, arrow_type)
    values = np.array([piece[0] if len(piece) else 0 for piece in pieces], INT64)
    return arrow(np.repeat(values, counts), mask, pa.int64()).cast(arrow_type)


def arrow(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, arrow_type: pa.DataType) -> pa.Array:
    """An array as a column, null where the mask is set, without a copy."""
    rows = len(values)
    if values.dtype == np.bool_:
        values = np.packbits(values, bitorder="little")
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, rows, [valid, pa.py_buffer(values)])


def plain(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of a column as an array, whatever stands where it is null. The way back."""
    _, buffer = column.buffers()
    return np.frombuffer(buffer, dtype)[column.offset : column.offset + len(column)]


def constant(value: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:  # noqa: ANN401
    """A column of one value; of nulls for None. Most are the same few values again and again, so they are kept."""
    length = CONSTANT_ROWS
    while length < rows:
        length *= 2
    return _constant(value, arrow_type, length).slice(0, rows)


@functools.lru_cache(maxsize=256)
def _constant(value: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:  # noqa: ANN401
    return (
        pa.nulls(rows, arrow_type) if value is None else pa.repeat(pa.scalar(value, pa.int64()).cast(arrow_type), rows)
    )


class Names:
    """Topics and partitions (or keys) of rows that point into the dictionaries of their pieces."""

    __slots__ = ("_counts", "_known", "_places")

    def __init__(self) -> None:
        self._known: Final[dict[PartitionName, int]] = {}
        """All names so far, and their places."""
        self._places: Final[list[Values]] = []
        self._counts: Final[list[int]] = []

    def add(self, names: list[PartitionName], places: Values, count: int) -> None:
        """One more piece: for each row (or for all) its place among the names, by default the first, or NAMELESS."""
        known = self._known
        numbers = [known.setdefault(name, len(known)) for name in names]
        numbers.append(NAMELESS)  # found at place -1
        if isinstance(places, list):
            self._places.append([numbers[places[0] if places else 0]])
        else:
            self._places.append(np.array(numbers, INT64)[places])
        self._counts.append(count)

    def take(self) -> tuple[pa.Array, pa.Array]:
        """The columns `topic` and `partition`, emptied; null where rows have no name."""
        places = plain(column(self._places, self._counts, pa.int64()), INT64)
        nameless = places == NAMELESS
        mask = nameless if nameless.any() else None
        words: dict[str, int] = {}
        # Rows without a name find the last of either.
        topics = np.array([*(words.setdefault(topic, len(words)) for topic, _ in self._known), 0], np.int32)
        partitions = np.array([*(partition for _, partition in self._known), 0], INT64).clip(-INT32_MAX, INT32_MAX)
        topic = worded(arrow(topics.take(places), mask, pa.int32()), list(words))
        partition = arrow(partitions.astype(np.int32).take(places), mask, pa.int32())
        self._known.clear()
        self._places.clear()
        self._counts.clear()
        return topic, partition


class Calls:
    """The columns that all rows of a call share: those of every table and, with `registrants`, whose rows they are."""

    __slots__ = ("_registrants", "_stamps", "counts")

    def __init__(self) -> None:
        self.counts: Final[list[int]] = []
        """Rows of each piece."""
        self._stamps: Final[list[CallStamp]] = []
        self._registrants: Final[list[Registrant]] = []

    def add(self, stamp: CallStamp, count: int, registrant: Registrant | None = None) -> None:
        """One more piece, of so many rows."""
        self.counts.append(count)
        self._stamps.append(stamp)
        if registrant is not None:
            self._registrants.append(registrant)

    def take(self) -> dict[str, pa.Array]:
        """The columns by name, emptied."""
        stamps, registrants, counts = self._stamps, self._registrants, self.counts
        columns = {
            "run_id": words_of([stamp.run_id for stamp in stamps], counts),
            "call_number": repeated([stamp.call_number for stamp in stamps], counts, pa.int64()),
            "time_ms": repeated([stamp.time_ms for stamp in stamps], counts, pa.int64()),
            "at": repeated([stamp.at_ms for stamp in stamps], counts, pa.timestamp("ms", tz="UTC")),
        }
        if registrants:
            columns["session_number"] = repeated([whose.session_number for whose in registrants], counts, pa.int64())
            columns["session_id"] = words_of([whose.session_id for whose in registrants], counts)
            columns["principal"] = words_of([whose.principal for whose in registrants], counts)
        stamps.clear()
        registrants.clear()
        counts.clear()
        return columns


class Gathered:
    """The pieces of one table, whose columns are laid out so. Its subclasses `take` rows of them."""

    def __init__(self, layout: Layout) -> None:
        self.rows = 0
        """Gathered so far."""
        self._calls: Final = Calls()
        self._operations: Final = Columns(layout.of_operations)
        self._rows: Final = Columns(layout.of_rows)
        self._names: Final = Names()
        self._split: Final = len(layout.of_operations)
        self._columns: Final = int(layout.columns)

    @functools.cached_property
    def _writer(self) -> ColumnWriter:
        """Of pieces that are made here, not sent."""
        return ColumnWriter()

    def add(self, stamp: CallStamp, piece: Piece) -> None:
        """One more piece."""
        places, *columns = columns_in(piece.columns, self._columns)
        self.rows += piece.rows
        self._calls.add(stamp, piece.rows, piece.registrant)
        self._operations.add(piece.operations, columns[: self._split])
        self._rows.add(piece.rows, columns[self._split :])
        self._names.add(piece.names, places, piece.rows)

    def clear(self) -> None:
        """Begins anew: all that was gathered has been taken."""
        self._operations.clear()
        self._rows.clear()
        self.rows = 0
        self._writer.give_back(self._writer.taken)


def columns_in(packed: memoryview | bytes, count: int) -> list[Values]:
    """So many columns that a `ColumnWriter` wrote, without a copy of those that are long."""
    numbers = np.frombuffer(packed, INT64)
    columns: list[Values] = []
    place = count
    for length in numbers[:count].tolist():
        if length > 1:
            columns.append(numbers[place : place + length])
        else:
            columns.append([numbers.item(place)] if length else ABSENT)
        place += length
    return columns


def repeated(values: list[int], counts: Sequence[int], arrow_type: pa.DataType) -> pa.Array:
    """Each value as often as its count says."""
    if values[0] == values[-1] and values.count(values[0]) == len(values):
        return constant(values[0], arrow_type, sum(counts))
    return arrow(np.repeat(np.array(values, np.int64), counts), None, pa.int64()).cast(arrow_type)


def words_of(values: list[str], counts: list[int]) -> pa.Array:
    """Each word as often as its count says, dictionary-encoded."""
    words: dict[str, int] = {}
    places = [words.setdefault(value, len(words)) for value in values]
    return worded(repeated(places, counts, pa.int32()), list(words))


def worded(places: pa.Array, words: list[str]) -> pa.Array:
    """A dictionary-encoded column. The places must be those of words: nobody looks."""
    return pa.DictionaryArray.from_arrays(places, pa.array(words, pa.string()), safe=False)


def spread(items: pa.Array, rows: int) -> tuple[pa.Array, pa.Array | None]:
    """From the rows of each operation: the column `item`, and the operation of each row (None: one row each)."""
    if len(items) == rows:
        return constant(0, pa.int32(), rows), None
    counts = plain(items, INT64 if items.type == pa.int64() else INT32)
    operation_of = np.repeat(np.arange(len(counts)), counts)
    first_row = np.cumsum(counts) - counts
    item = (np.arange(rows) - first_row[operation_of]).astype(np.int32)
    return arrow(item, None, pa.int32()), arrow(operation_of, None, pa.int64())


def finish(table: str, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """A table's record batch from its columns by name."""
    names = SCHEMAS[table].names
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)
