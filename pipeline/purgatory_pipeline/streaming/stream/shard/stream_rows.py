"""Input of a stream as Arrow rows: registrations, events and heartbeats in one table, and where each belongs.

Rows are flat, with the archive's columns (`purgatory.extensions.archive.table_columns`): a registration has one row for
each partition (or key) of its operation, one after the other, an event one. A column that is absent is null in every
row, and null is the default of the wire.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from purgatory.extensions.archive.schema import EVENTS, REGISTRATIONS, SCHEMAS
from purgatory_pipeline.engine_rows.integers import Hashes, Integers, hash_operations

HEAD: Final = pa.schema(
    [
        pa.field("at_ms", pa.int64(), nullable=False),  # event time: milliseconds since 1970, UTC
        pa.field("place", pa.int64()),  # order among the rows of a millisecond: a call's number, an offset in a topic
        pa.field("kind", pa.int8()),  # of an operation, as its code; 0: not a registration
        pa.field("type", pa.int8()),  # of an event, as its code; 0: not an event. Both 0: a heartbeat, only time passes
        pa.field("caller", pa.string()),  # whose operation it is: ids are unique for each caller
        pa.field("operation_id", pa.int64()),
        pa.field("timeout_ms", pa.int64()),
        pa.field("item", pa.int32()),  # place in the operation, from 0
        pa.field("item_count", pa.int32()),
        pa.field("topic", pa.string()),  # or the key of a signal
        pa.field("partition", pa.int32()),  # null: a signal
    ]
)

_OF_ANSWERS: Final = ("refusal_code", "ended")
"""Columns of events that say what became of them."""


def _after_name(table: str) -> list[pa.Field]:
    fields = list(SCHEMAS[table])
    after = SCHEMAS[table].get_field_index("partition") + 1
    return [field for field in fields[after:] if field.name not in _OF_ANSWERS]


ROWS: Final = pa.schema(
    [*HEAD, *{field.name: field for table in (REGISTRATIONS, EVENTS) for field in _after_name(table)}.values()]
)
"""All columns of a stream's rows."""


def conformed(rows: pa.Table) -> pa.Table:
    """The rows with only columns of `ROWS`, each of its type; those in which all is null are left out.

    Raises `pa.ArrowInvalid` where a column cannot be cast.
    """
    kept = {
        field.name: rows.column(field.name).cast(field.type)
        for field in ROWS
        if field.name in rows.column_names and rows.column(field.name).null_count < rows.num_rows
    }
    return pa.table(kept) if kept else ROWS.empty_table().select(["at_ms"])


def hashes_of(callers: pa.ChunkedArray, operation_ids: Integers) -> Hashes:
    """64 well-mixed bits for each operation, the same in every process and every version."""
    encoded = callers.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    words = np.array([*encoded.dictionary.to_pylist(), ""], object)
    places = encoded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
    own: Integers = pd.util.hash_array(words, categorize=False).view(np.int64)
    return hash_operations(own[places], operation_ids)


def shards_of(hashes: Hashes, shards: int) -> npt.NDArray[np.int64]:
    """The shard of each operation, from 0."""
    return (hashes % np.uint64(shards)).astype(np.int64)
