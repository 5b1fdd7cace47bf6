"""Arrow columns from arrays of numbers, and back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.archive.pieces import INT64, Numbers
from purgatory.archive.schema import SCHEMAS

__all__ = ["arrow", "constant", "finish", "plain", "repeated", "spread", "worded", "words_of"]

CONSTANT_ROWS: Final = 16_384
INT32: Final = np.dtype(np.int32)


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


def repeated(values: Numbers, counts: Numbers, arrow_type: pa.DataType) -> pa.Array:
    """Each value as often as its count says."""
    if (values == values[0]).all():
        return constant(int(values[0]), arrow_type, int(counts.sum()))
    return arrow(np.repeat(values, counts), None, pa.int64()).cast(arrow_type)


def words_of(values: Sequence[str], counts: Numbers, places: Numbers | None = None) -> pa.Array:
    """Each word (or that at each place) as often as its count says, dictionary-encoded."""
    words: dict[str, int] = {}
    own = np.array([words.setdefault(value, len(words)) for value in values], INT64)
    return worded(repeated(own if places is None else own[places], counts, pa.int32()), list(words))


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
