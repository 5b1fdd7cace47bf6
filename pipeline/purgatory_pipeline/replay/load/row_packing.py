"""Packs a chunk into few bytes for Spark's shuffle, where a byte costs more than all the work done on it here.

Most columns hold one value, or rise by little, or lie close together: Parquet keeps these as differences of few bits.
"""

import json
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory_pipeline.replay.load.row_chunk import RowChunk

_REST: Final = b"rest"
"""Key of the metadata that holds all but the columns."""


def pack(chunk: RowChunk) -> bytes:
    """The chunk as a Parquet file."""
    rest = json.dumps([chunk.table, chunk.names, chunk.detail_rows.tolist(), chunk.details])
    columns = {name: values.astype(np.int64, copy=False) for name, values in chunk.columns.items()}
    out = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, metadata={_REST: rest}),
        out,
        compression="none",
        use_dictionary=False,
        column_encoding="DELTA_BINARY_PACKED",
        write_statistics=False,
    )
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes) -> RowChunk:
    """Reverses `pack`; all columns come back as 64-bit integers."""
    found = pq.read_table(pa.BufferReader(packed), use_threads=False)
    table, names, detail_rows, details = json.loads(found.schema.metadata[_REST])
    columns = {name: found[name].to_numpy() for name in found.column_names}
    return RowChunk(
        table, columns, [(topic, place) for topic, place in names], np.array(detail_rows, np.int64), details
    )
