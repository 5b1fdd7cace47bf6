"""Packs a chunk for Spark's shuffle, where each byte costs more than the work done on it here.

Values of most columns rise in small steps, or are close together. So a column is stored as its steps, or as distances
from its lowest value, in the smallest integers that fit.
"""

import pickle
from dataclasses import replace

import numpy as np

from purgatory_pipeline.engine_rows.row_chunk import Column, RowChunk


def pack(chunk: RowChunk) -> bytes:
    """The chunk as bytes for another task of the same job."""
    encoded = {name: _encoded(values.astype(np.int64)) for name, values in chunk.columns.items()}
    return pickle.dumps((encoded, replace(chunk, columns={})))


def unpack(packed: bytes) -> RowChunk:
    """Reverses `pack`; all columns come back as 64-bit integers."""
    rest: RowChunk
    encoded, rest = pickle.loads(packed)  # noqa: S301 -- made by `pack`
    return replace(rest, columns={name: _decoded(*column) for name, column in encoded.items()})


def _encoded(values: Column) -> tuple[int, bool, Column]:
    """The value to count from, whether numbers are steps, and the numbers. Sums that overflow come back right."""
    if not len(values):
        return 0, False, values
    steps = np.diff(values, prepend=values[0])
    rises = bool(np.all(steps >= 0))
    base = int(values[0] if rises else values.min())
    numbers = (steps if rises else values - base).view(np.uint64)
    return base, rises, numbers.astype(np.min_scalar_type(int(numbers.max())))


def _decoded(base: int, rises: bool, numbers: Column) -> Column:
    whole = numbers.astype(np.int64)
    decoded: Column = (np.cumsum(whole) if rises else whole) + base
    return decoded
