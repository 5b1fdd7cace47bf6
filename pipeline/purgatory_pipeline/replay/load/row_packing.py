"""Packs a chunk into few bytes for Spark's shuffle, where a byte costs more than all the work done on it here.

Most columns hold one value, or rise by little, or lie close together. So each becomes a constant, differences, or
distances from its lowest value, in the smallest integers that hold them.
"""

import json
from typing import Any, Final

import numpy as np

from purgatory_pipeline.replay.load.row_chunk import Column, RowChunk

CONSTANT: Final = "constant"
DIFFERENCES: Final = "differences"
DISTANCES: Final = "distances"
RAW: Final = "raw"
_SIZES: Final = ((1 << 8, np.uint8), (1 << 16, np.uint16), (1 << 32, np.uint32))
_LENGTH_BYTES: Final = 8


def pack(chunk: RowChunk) -> bytes:
    """A header in JSON, then the columns one after the other."""
    columns: list[tuple[Any, ...]] = []
    buffers: list[bytes] = []
    for name, values in chunk.columns.items():
        how, first, lowest, encoded = _encoded(values)
        columns.append((name, how, first, lowest, encoded.dtype.str, len(encoded)))
        buffers.append(encoded.tobytes())
    head = {
        "table": chunk.table,
        "rows": len(chunk),
        "columns": columns,
        "names": chunk.names,
        "detail_rows": chunk.detail_rows.tolist(),
        "details": chunk.details,
    }
    header = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *buffers])


def unpack(packed: bytes) -> RowChunk:
    """Reverses `pack`; all columns come back as 64-bit integers."""
    start = _LENGTH_BYTES + int.from_bytes(packed[:_LENGTH_BYTES], "little")
    head = json.loads(packed[_LENGTH_BYTES:start])
    columns: dict[str, Column] = {}
    for name, how, first, lowest, dtype, length in head["columns"]:
        encoded = np.frombuffer(packed, dtype, length, start)
        start += encoded.nbytes
        columns[name] = _decoded(how, first, lowest, encoded, head["rows"])
    return RowChunk(
        head["table"],
        columns,
        [(topic, partition) for topic, partition in head["names"]],
        np.array(head["detail_rows"], np.int64),
        head["details"],
    )


def _encoded(values: Column) -> tuple[str, int, int, Column]:
    """How a column is encoded, its first value, the lowest, and the numbers."""
    nothing = np.empty(0, np.uint8)
    if not len(values):
        return RAW, 0, 0, nothing
    first, lowest, highest = int(values[0]), int(values.min()), int(values.max())
    if lowest == highest:
        return CONSTANT, first, lowest, nothing
    spread = highest - lowest
    if spread >= 1 << 62:
        return RAW, first, lowest, values.astype(np.int64)
    whole = values.astype(np.int64)
    differences = np.diff(whole)
    least = int(differences.min())
    rise = int(differences.max()) - least
    if rise < spread and _smallest(rise) != _smallest(spread):
        return DIFFERENCES, first, least, (differences - least).astype(_smallest(rise))
    return DISTANCES, first, lowest, (whole - lowest).astype(_smallest(spread))


def _decoded(how: str, first: int, lowest: int, encoded: Column, rows: int) -> Column:
    if how == CONSTANT:
        return np.full(rows, first, np.int64)
    if how == RAW:
        return encoded.astype(np.int64)
    values = encoded.astype(np.int64) + lowest
    if how == DISTANCES:
        return values
    summed: Column = np.cumsum(np.concatenate([np.array([first]), values]))
    return summed


def _smallest(highest: int) -> type[np.unsignedinteger[Any]]:
    """The smallest unsigned type that holds a number."""
    for below, dtype in _SIZES:
        if highest < below:
            return dtype
    return np.uint64
