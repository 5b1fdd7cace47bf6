"""Results of the wire as Arrow rows, one for each operation."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory.engine.completions import FETCHED_COLUMNS, OPTIONAL_COLUMNS, RESULT_COLUMNS
from purgatory.extensions.archive.schema import RESULT_ITEM
from purgatory.v1 import result_pb2

NUMBERS: Final = [
    one.name for one in RESULT_COLUMNS if one.name not in ("operation_id", "kind", "outcome", "item_count")
]
RESULT_ROWS: Final = pa.schema(
    [
        ("session", pa.string()),
        ("incarnation", pa.string()),  # of the session; sequence numbers are unique within it
        ("sequence", pa.int64()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        *((name, pa.int64()) for name in NUMBERS),
        ("items", pa.list_(RESULT_ITEM)),
        ("refusal", pa.string()),
    ]
)
"""The columns of a stream of results."""

_FETCHED: Final = frozenset(column.name for column in FETCHED_COLUMNS)


def rows_of(session: str, incarnation: str, first_sequence: int, columns: result_pb2.ResultColumns) -> pa.Table:
    """The rows of one message."""
    count = len(columns.operation_id)
    outcomes = _values(columns.outcome, count, np.int64)
    item_counts = _values(columns.item_count or [1], count, np.int64)
    refusals: list[str | None] = [None] * count
    for place, refusal in zip(
        np.flatnonzero(outcomes == result_pb2.OUTCOME_REFUSED).tolist(), columns.refusals, strict=True
    ):
        refusals[place] = f"{refusal.field}: {refusal.message}"
    starts = pa.array(np.concatenate([[0], np.cumsum(item_counts)]), pa.int32())
    return pa.table(
        {
            "session": pa.repeat(pa.scalar(session), count),
            "incarnation": pa.repeat(pa.scalar(incarnation), count),
            "sequence": np.arange(first_sequence, first_sequence + count),
            "operation_id": np.array(columns.operation_id, np.uint64).astype(np.int64),
            "kind": pa.repeat(pa.scalar(KIND_NAMES.get(columns.kind), pa.string()), count),
            "outcome": _words(outcomes, OUTCOME_NAMES),
            **{name: _values(getattr(columns, name), count, np.int64) for name in NUMBERS},
            "items": pa.ListArray.from_arrays(starts, _items(columns, int(item_counts.sum()))),
            "refusal": pa.array(refusals, pa.string()),
        },
        schema=RESULT_ROWS,
    )


def _items(columns: result_pb2.ResultColumns, count: int) -> pa.StructArray:
    names = [*(name.topic for name in columns.partitions), *columns.keys]
    numbers = [*(name.partition for name in columns.partitions), *[None] * len(columns.keys)]
    places = pa.array(_values(columns.item_index, count, np.int32))
    arrays: dict[str, Any] = {
        "topic": pa.array(names, pa.string()).take(places) if names else pa.nulls(count, pa.string()),
        "partition": pa.array(numbers, pa.int32()).take(places) if names else pa.nulls(count, pa.int32()),
    }
    for field in RESULT_ITEM:
        if field.name in arrays:
            continue
        given = getattr(columns, field.name)
        if field.name in _FETCHED and not given:
            arrays[field.name] = pa.nulls(count, field.type)
            continue
        values = _values(given, count, field.type.to_pandas_dtype())
        arrays[field.name] = pa.array(values, field.type, mask=values < 0 if field.name in OPTIONAL_COLUMNS else None)
    return pa.StructArray.from_arrays([arrays[field.name] for field in RESULT_ITEM], fields=list(RESULT_ITEM))


def _values(given: Any, count: int, kind: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - a packed column, numpy's types
    """A column of the wire. It may be empty (all zeros), or have one value for all rows."""
    if len(given) == count:
        return np.array(given, kind)
    return np.full(count, given[0] if given else 0, kind)


def _words(codes: np.ndarray[Any, Any], names: dict[int, str]) -> pa.Array:
    labels = [names.get(code, "") for code in range(max(names) + 1)]
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(labels)).cast(pa.string())
