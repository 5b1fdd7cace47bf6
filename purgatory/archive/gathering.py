"""Gathering columns of several calls before Arrow arrays are made of them: that costs microseconds a column and batch.

A column comes as a list of a value for each operation (or item), as one value for all, or as none; or, from
completions, as a buffer of numbers. While it is gathered, it is only put to the others: all of it is read at once when
it is taken. What is the same for all of a call, and what is absent, is only counted. No object is made for a row.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.archive.schema import NO_PARTITION, SCHEMAS

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "NAMELESS",
    "NO_SESSION",
    "CallStamp",
    "Calls",
    "Column",
    "Names",
    "Registrant",
    "arrow",
    "constant",
    "finish",
    "keys_as_names",
    "plain",
    "spread",
    "topic_and_partition",
    "worded",
]

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

NAMELESS: Final = -1
"""Place of a row that has no name: it pointed outside its dictionary, and was refused."""

CONSTANT_ROWS: Final = 16_384
INT32: Final = np.dtype(np.int32)
INT64: Final = np.dtype(np.int64)


class CallStamp:
    """Which engine call rows belong to. `time_ms` is the engine's clock, `at_ms` wall-clock time since 1970 in UTC."""

    __slots__ = ("at_ms", "call_number", "run_id", "time_ms")

    def __init__(self, run_id: str, call_number: int, time_ms: int, at_ms: int) -> None:
        self.run_id: Final = run_id
        self.call_number: Final = call_number
        self.time_ms: Final = time_ms
        self.at_ms: Final = at_ms


class Registrant:
    """Whose operations rows are about."""

    __slots__ = ("principal", "session_id", "session_number")

    def __init__(self, session_number: int, session_id: str, principal: str = "") -> None:
        self.session_number: Final = session_number
        self.session_id: Final = session_id
        self.principal: Final = principal


NO_SESSION: Final = Registrant(0, "")
"""The registrant of unary waits."""


class Run:
    """So many rows with the same value; None: with none."""

    __slots__ = ("count", "value")

    def __init__(self, value: Any, count: int) -> None:  # noqa: ANN401 - of whatever type the column has
        self.value: Final = value
        self.count = count


class Column:
    """One column of several pieces, each noted as it came."""

    __slots__ = ("_blocks", "_dtype", "_rows", "_type")

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type: Final = arrow_type
        self._dtype: Final = np.dtype(arrow_type.to_pandas_dtype())
        self._blocks: Final[list[Run | range | list[Any]]] = []
        self._rows = 0

    def add(self, values: Sequence[Any], count: int) -> None:
        """The values of so many more rows: one for each, one for all, or none."""
        self._rows += count
        length = len(values)
        if length == count > 1:
            last = self._blocks[-1] if self._blocks else None
            if type(last) is list:
                last += values
            else:
                self._blocks.append(list(values))
        else:
            self._add_run(values[0] if length else None, count)

    def add_range(self, values: range) -> None:
        """The values of more rows, each one more than that before."""
        self._rows += len(values)
        self._blocks.append(values)

    def _add_run(self, value: Any, count: int) -> None:  # noqa: ANN401
        last = self._blocks[-1] if self._blocks else None
        if type(last) is Run and last.value == value:
            last.count += count
        elif type(last) is list and value is not None and count == 1:
            last.append(value)
        else:
            self._blocks.append(Run(value, count))

    def take(self) -> pa.Array:
        """The gathered column, emptied. What was not given is null."""
        [block, *others] = self._blocks
        if not others and type(block) is Run:
            column = constant(block.value, self._type, self._rows)
        else:
            column = arrow(*self._filled(), self._type)
        self._blocks.clear()
        self._rows = 0
        return column

    def take_array(self) -> npt.NDArray[Any]:
        """The same as an array. There must be no nulls."""
        values, mask = self._filled()
        assert mask is None, "a column that always has values has none"
        self._blocks.clear()
        self._rows = 0
        return values

    def _filled(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
        """All values, and where there are none."""
        values = np.empty(self._rows, self._dtype)
        mask: npt.NDArray[np.bool_] | None = None
        start = 0
        for block in self._blocks:
            stop = start + (block.count if isinstance(block, Run) else len(block))
            if isinstance(block, list):
                values[start:stop] = packed(block, len(block), self._dtype)
            elif isinstance(block, range):
                values[start:stop] = np.arange(block.start, block.stop)
            elif block.value is not None:
                values[start:stop] = block.value
            else:
                mask = np.zeros(self._rows, np.bool_) if mask is None else mask
                mask[start:stop] = True
                values[start:stop] = 0
            start = stop
        return values, mask


def packed(values: Iterable[Any], count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """So many Python numbers as an array, in half the time that numpy takes for it."""
    return np.frombuffer(struct.pack(f"{count}{dtype.char}", *values), dtype)


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
    return pa.nulls(rows, arrow_type) if value is None else pa.repeat(pa.scalar(value, arrow_type), rows)


class Known(dict[Any, int]):
    """Words or names by the order of their first mention: looking one up enters it."""

    def __missing__(self, name: Any) -> int:  # noqa: ANN401 - any name
        place = self[name] = len(self)
        return place


class Names:
    """Topics and partitions (or keys) of rows that point into the dictionaries of their pieces."""

    __slots__ = ("_counts", "_firsts", "_names", "_places")

    def __init__(self) -> None:
        self._names: Final[list[tuple[str, int]]] = []
        """The dictionaries, one after the other."""
        self._firsts: Final[list[int]] = []
        """Where each begins."""
        self._counts: Final[list[int]] = []
        self._places: Final = Column(pa.int64())

    def add(self, names: Sequence[tuple[str, int]], places: Sequence[int], count: int) -> None:
        """One more piece: for each row (or for all) its place among the names, by default the first, or NAMELESS."""
        self._firsts.append(len(self._names))
        self._counts.append(count)
        self._names.extend(names)
        self._places.add(places or (0,), count)

    def take(self) -> tuple[pa.Array, pa.Array]:
        """The columns `topic` and `partition`, emptied."""
        places = self._places.take_array()
        nameless = places == NAMELESS
        places += np.repeat(self._firsts, self._counts)
        columns = topic_and_partition(self._names, places, nameless if nameless.any() else None)
        self._names.clear()
        self._firsts.clear()
        self._counts.clear()
        return columns


def topic_and_partition(
    names: Sequence[tuple[str, int]],
    places: npt.NDArray[np.int64] | None = None,
    nameless: npt.NDArray[np.bool_] | None = None,
) -> tuple[pa.Array, pa.Array]:
    """The columns of these names, or of those at these places among them; null where rows have no name."""
    known, words = Known(), Known()
    place_of = packed(map(known.__getitem__, names), len(names), INT32)
    if places is not None:
        place_of = np.append(place_of, np.int32(0)).take(places)  # there is one even for rows that have no name
    topics = np.array([*(words[topic] for topic, _ in known), 0], np.int32)
    partitions = np.array([*(partition for _, partition in known), 0], np.int64).clip(-INT32_MAX, INT32_MAX)
    topic = worded(arrow(topics.take(place_of), nameless, pa.int32()), list(words))
    return topic, arrow(partitions.astype(np.int32).take(place_of), nameless, pa.int32())


def keys_as_names(keys: Sequence[str]) -> list[tuple[str, int]]:
    """Keys of signals as the archive names them."""
    return [(key, NO_PARTITION) for key in keys]


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


def repeated(values: list[int], counts: list[int], arrow_type: pa.DataType) -> pa.Array:
    """Each value as often as its count says."""
    if values[0] == values[-1] and values.count(values[0]) == len(values):
        return constant(values[0], arrow_type, sum(counts))
    return arrow(np.repeat(np.array(values, np.int64), counts), None, arrow_type)


def words_of(values: list[str], counts: list[int]) -> pa.Array:
    """Each word as often as its count says, dictionary-encoded."""
    words = Known()
    places = [words[value] for value in values]
    if len(words) == 1:
        indices = constant(0, pa.int32(), sum(counts))
    else:
        indices = arrow(np.repeat(np.array(places, np.int32), counts), None, pa.int32())
    return worded(indices, list(words))


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
