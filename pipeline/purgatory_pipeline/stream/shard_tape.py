"""Converts ordered rows to a tape for the engine."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine import tape
from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import APPLY, PASS_TIME, REGISTER
from purgatory.engine.codes import KINDS
from purgatory.extensions.archive.schema import EVENT_LABELS, EVENTS, KIND_LABELS, REGISTRATIONS
from purgatory_pipeline.engine_rows.arrow_chunks import chunk_of
from purgatory_pipeline.engine_rows.engine_batches import RegisteredOperations, complete_operations, event_batch
from purgatory_pipeline.engine_rows.integers import Integers
from purgatory_pipeline.engine_rows.row_chunk import RowChunk
from purgatory_pipeline.engine_rows.tape_steps import TapeSteps, merged, steps
from purgatory_pipeline.stream.stream_rows import Records

_WORDS: Final = {REGISTRATIONS: ("kind", KIND_LABELS), EVENTS: ("type", EVENT_LABELS)}


@dataclass(frozen=True)
class RowTape:
    """Operations and events in the order in which they are played, and the tape that plays them."""

    tape: tape.Tape
    operations: RegisteredOperations | None
    registrations: Integers
    """The operations among the records, in the order of their engine ids."""
    events: Integers
    """The first row of each event, in order."""


def tape_of(
    rows: pa.Table, records: Records, order: Integers, first_id: int, until_ms: int, default_ms: int
) -> RowTape:
    """Build the tape that plays these records and then advances time to an instant.

    `default_ms`: the timeout of operations that were registered without.
    """
    is_registration = records.is_registration[order]
    calls = np.arange(len(order))
    parts: list[TapeSteps] = []
    registrations, events = order[is_registration], order[~is_registration]
    operations, batches = None, []
    if len(registrations):
        chunk = _chunk(
            REGISTRATIONS,
            _timed(rows.take(pa.array(records.rows(registrations))), default_ms),
            records.count[registrations],
            calls[is_registration],
        )
        operations = RegisteredOperations(complete_operations(chunk), first_id, {})
        assert operations.rows == len(registrations), f"{operations.rows} of {len(registrations)} operations"
        batches = _batches(operations)
        parts.append(steps(operations.call, operations.time, operations.kind + REGISTER))
    batch = None
    if len(events):
        one_each = np.ones(len(events), np.int64)
        chunk = _chunk(EVENTS, rows.take(pa.array(records.start[events])), one_each, calls[~is_registration])
        batch = event_batch(chunk)
        parts.append(steps(chunk.columns["call"], chunk.columns["time"], APPLY))
    codes, times, counts = merged(parts, by_time=False) if parts else ([], [], [])
    played = tape.Tape([*codes, PASS_TIME], [*times, until_ms], [*counts, 0], operations=batches, events=batch)
    return RowTape(played, operations, registrations, records.start[events])


def _timed(rows: pa.Table, default_ms: int) -> pa.Table:
    if "timeout_ms" not in rows.column_names:
        return rows.append_column("timeout_ms", pa.repeat(pa.scalar(default_ms, pa.int64()), rows.num_rows))
    place = rows.column_names.index("timeout_ms")
    return rows.set_column(place, "timeout_ms", pc.fill_null(rows.column("timeout_ms"), default_ms))


def _chunk(table: str, rows: pa.Table, counts: Integers, calls: Integers) -> RowChunk:
    """Rows as a chunk of the archive has them; each record has its own call."""
    word, labels = _WORDS[table]
    codes = rows.column(word).combine_chunks().cast(pa.int32())
    renamed = {
        "call_number": pa.array(np.repeat(calls, counts)),
        "time_ms": rows.column("at_ms"),
        "session_number": pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows),
        word: pa.chunked_array([pa.DictionaryArray.from_arrays(codes, pa.array(labels))]),
        "topic": _texts(rows, "topic").dictionary_encode(),
        "partition": rows.column("partition") if "partition" in rows.column_names else _nulls(rows, pa.int32()),
    }
    left_out = {"place", "kind", "type", "caller", "at_ms"}
    others = {name: rows.column(name) for name in rows.column_names if name not in renamed and name not in left_out}
    return chunk_of(table, pa.table({**renamed, **_with_sets(table, others, rows)}), Counter())


def _with_sets(table: str, columns: dict[str, pa.ChunkedArray], rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Lists of replicas come all together, or not at all."""
    lists = {"replicas": pa.list_(pa.int32()), "in_sync": pa.list_(pa.int32()), "proposed": pa.list_(pa.int32())}
    single = {"leader_id": pa.int32(), "min_in_sync_replicas": pa.int32()}
    sets = lists | single
    if table != EVENTS or not any(name in columns for name in sets):
        return columns
    return columns | {name: columns.get(name, _nulls(rows, kind)) for name, kind in sets.items()}


def _texts(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return rows.column(name) if name in rows.column_names else _nulls(rows, pa.string())


def _nulls(rows: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(rows.num_rows, kind)])


def _batches(operations: RegisteredOperations) -> list[OperationBatch | None]:
    there = set(np.flatnonzero(np.bincount(operations.kind)).tolist())
    return [
        operations.batch(kind, operations.timeout_ms, operations.min_bytes) if kind in there else None
        for kind in range(max(KINDS) + 1)
    ]
