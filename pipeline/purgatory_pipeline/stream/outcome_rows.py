"""Outcomes of a stream as Arrow rows, one for each operation."""

from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.engine.batches import Refusal
from purgatory.engine.codes import FETCH, REFUSED
from purgatory.engine.completions import FETCHED_COLUMNS, RESULT_ITEM_COLUMNS, Completions
from purgatory.extensions.archive.schema import KIND_LABELS, OUTCOME_LABELS, RESULT_ITEM
from purgatory_pipeline.engine_rows.integers import Integers

INSTANT: Final = pa.timestamp("us", tz="UTC")

OUTCOME_ROWS: Final = pa.schema(
    [
        ("caller", pa.string()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        ("registered_at", INSTANT),
        ("ended_at", INSTANT),
        ("waited_ms", pa.int64()),
        ("items", pa.list_(RESULT_ITEM)),  # in the order of the registration
        ("refusal", pa.string()),  # the field at fault and what is wrong with it; null but for refused operations
    ]
)


def completed_rows(ended: Completions, owners: pa.Table) -> pa.Table:
    """The outcomes of operations. `owners` has the row of `CALLERS` of each."""
    item_counts = np.asarray(ended.item_counts, np.int64)
    starts = pa.array(np.concatenate([[0], np.cumsum(item_counts)]), pa.int32())
    items = pa.ListArray.from_arrays(starts, _items(ended, item_counts))
    waited = np.asarray(ended.waited_ms, np.int64)
    return _rows(owners, ended.kinds, ended.outcomes, waited, items, pa.nulls(len(ended), pa.string()))


def refused_rows(refusals: list[Refusal], owners: pa.Table, kinds: Integers) -> pa.Table:
    zeros = np.zeros(len(refusals), np.int64)
    items = pa.array([[]] * len(refusals), pa.list_(RESULT_ITEM))
    return _rows(owners, kinds, zeros + REFUSED, zeros, items, [f"{one.field}: {one.message}" for one in refusals])


def _rows(
    owners: pa.Table, kinds: object, outcomes: object, waited: Integers, items: pa.Array, refusals: object
) -> pa.Table:
    registered = owners.column("registered_ms").to_numpy()
    return pa.table(
        {
            "caller": owners.column("caller"),
            "operation_id": owners.column("operation_id"),
            "kind": words(kinds, KIND_LABELS),
            "outcome": words(outcomes, OUTCOME_LABELS),
            "registered_at": instants(registered),
            "ended_at": instants(registered + waited),
            "waited_ms": waited,
            "items": items,
            "refusal": refusals,
        },
        schema=OUTCOME_ROWS,
    )


def instants(times_ms: Integers) -> pa.Array:
    """Milliseconds since 1970 as UTC timestamps."""
    return pa.array(times_ms * 1_000, INSTANT)


def words(codes: object, labels: list[str]) -> pa.Array:
    places = pa.array(np.asarray(codes, np.int64).astype(np.int32))
    return pa.DictionaryArray.from_arrays(places, pa.array(labels)).cast(pa.string())


def _items(ended: Completions, item_counts: Integers) -> pa.StructArray:
    names = ended.item_partitions
    columns: dict[str, pa.Array] = {
        "topic": pa.array([name[0] for name in names], pa.string()),
        "partition": pa.array([name[1] for name in names], pa.int32()),
    }
    for column in RESULT_ITEM_COLUMNS:
        kind = RESULT_ITEM.field(column.name).type
        values = np.asarray(getattr(ended, column.attribute), kind.to_pandas_dtype())
        columns[column.name] = pa.array(values, kind, mask=values < 0 if column.is_optional else None)
    is_fetch = np.repeat(np.asarray(ended.kinds, np.int64) == FETCH, item_counts)
    for column in FETCHED_COLUMNS:
        kind = RESULT_ITEM.field(column.name).type
        values = np.zeros(len(is_fetch), kind.to_pandas_dtype())
        if ended.fetched:
            values[is_fetch] = [getattr(one, column.attribute) for one in ended.fetched]
        columns[column.name] = pa.array(values, kind, mask=~is_fetch)
    return pa.StructArray.from_arrays([columns[field.name] for field in RESULT_ITEM], fields=list(RESULT_ITEM))
