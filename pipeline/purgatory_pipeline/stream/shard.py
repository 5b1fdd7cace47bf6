"""A shard of the purgatory: an engine fed with rows in any order, whose state is saved as bytes between batches.

A shard runs on event time. Its horizon is the latest timestamp of any row, minus the permitted delay. Rows before the
horizon are played in timestamp order and later ones are kept. A row that arrives when the horizon has passed it is
late.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine import tape
from purgatory.engine.batches import PartitionName, Refusal
from purgatory.engine.calls import APPLY, PASS_TIME, REGISTER, Cancel
from purgatory.engine.codes import EVENT_NAMES, KINDS
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.tape import Played
from purgatory.extensions.archive.schema import EVENT_LABELS, EVENTS, KIND_LABELS, REGISTRATIONS
from purgatory_pipeline.engine_rows.arrow_chunks import chunk_of
from purgatory_pipeline.engine_rows.engine_batches import RegisteredOperations, complete_operations, event_batch
from purgatory_pipeline.engine_rows.integers import Flags, Hashes, Integers
from purgatory_pipeline.engine_rows.row_chunk import RowChunk
from purgatory_pipeline.engine_rows.tape_steps import TapeSteps, merged, steps
from purgatory_pipeline.stream.caller_ids import CALLERS, CallerIds, Repeats
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS, completed_rows, refused_rows
from purgatory_pipeline.stream.stream_rows import ROWS, Records, column_of, conformed, hashes_of, play_order, records_of

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
        batches = operations.batches(operations.timeout_ms, operations.min_bytes)
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


UNBOUNDED: Final = 2**60
LIMITS: Final = EngineLimits(
    pending_operations_max=UNBOUNDED, pending_items_max=UNBOUNDED, partitions_max=UNBOUNDED, signal_keys_max=UNBOUNDED
)
"""A shard is limited only by its memory; the other limits are those of the daemon.

Every shard keeps the counts of all keys. If it evicted some, the choice would depend on its pending operations, and so
outcomes would depend on the number of shards.
"""
NOTHING: Final = np.empty(0, np.int64)
NEVER: Final = -1
"""No row received yet."""

BROKEN: Final = "incomplete: items are missing, kind or type is unknown, or operation_id is below 1"
QUARANTINED: Final = pa.schema([*ROWS, pa.field("reason", pa.string())])
"""Rows that could not be played, with the reason."""


@dataclass(frozen=True)
class PlayedRows:
    """The result of a batch: outcomes, late rows, and rows that the engine cannot interpret."""

    outcomes: pa.Table
    late: pa.Table
    malformed: pa.Table


class Shard:
    """`delay_ms`: how far rows may be out of order. With 0, batches may separate rows of the same millisecond.

    `forget_ms`: a partition or key that no event has named for this time, and that no pending operation names, is not
    saved. 0: all are.
    """

    def __init__(self, delay_ms: int = 0, *, number: int = 0, forget_ms: int = 0) -> None:
        assert delay_ms >= 0, f"delay_ms={delay_ms}"
        self.delay_ms = delay_ms
        self.forget_ms: Final = forget_ms
        self.named_ms: dict[PartitionName, int] = {}
        """The time of the last event that named each partition or key, (key, -1); empty if none is forgotten."""
        self.number: Final = number
        """Events go to all shards; only shard 0 reports late and malformed ones, so that each is reported once."""
        self.seen_ms = NEVER
        """Latest timestamp of any row, in ms since the epoch."""
        self.horizon_ms = NEVER
        """All rows before it have been played; without a delay, rows at it too."""
        self.clock_ms = NEVER
        """Time of the engine. With a delay it stays 1 ms before the horizon, where rows may still arrive."""
        self.late = 0
        """Number of late operations and events so far."""
        self.callers = CallerIds()
        self.kept: pa.Table = ROWS.empty_table().select(["at_ms"])
        """Rows after the horizon."""
        self.next_id = 1
        self.engine: Engine | None = None

    @property
    def pending(self) -> int:
        """Number of registered operations that are not complete; rows that are not due yet do not count."""
        return len(self.callers)

    @property
    def oldest_wait_ms(self) -> int:
        """How long the oldest pending operation has waited, by the engine's time; 0 if none is pending."""
        first_ms = pc.min(self.callers.table.column("registered_ms")).as_py()
        return 0 if first_ms is None else self.clock_ms - int(first_ms)

    def named_at_ms(self, name: PartitionName) -> int:
        """When an event last named a partition or key. Where that was not recorded: now."""
        return self.named_ms.get(name, self.clock_ms)

    def is_kept(self, name: PartitionName, references: int) -> bool:
        """Whether a partition or key is saved. `references`: by how many pending operations it is named."""
        return not self.forget_ms or references > 0 or self.clock_ms - self.named_at_ms(name) < self.forget_ms

    def start_engine(self, now_ms: int) -> Engine:
        self.clock_ms = now_ms
        self.engine = Engine(LIMITS, now_ms)
        self.owner = self.engine.add_owner()
        return self.engine

    def play(self, rows: pa.Table, seen_ms: int = NEVER) -> PlayedRows:
        """Add rows (`ROWS`, or some of its columns) and play those that are due. `seen_ms`, the latest timestamp of the
        whole batch, keeps all shards of a stream at the same horizon.
        """
        fresh = rows.num_rows
        rows = pa.concat_tables([self.kept, conformed(rows)], promote_options="default").combine_chunks()
        first_fresh = rows.num_rows - fresh
        at_ms = column_of(rows, "at_ms")
        self.seen_ms = max(self.seen_ms, seen_ms, int(at_ms.max(initial=NEVER)))
        before_ms, self.horizon_ms = self.horizon_ms, max(self.horizon_ms, self.seen_ms - self.delay_ms)
        records = records_of(rows)
        known = known_records(rows, records)
        is_late = (records.at_ms < before_ms) & (records.start >= first_fresh) & known
        self.late += int(is_late.sum())
        is_complete = known & records.is_complete & ~is_late
        # With a delay a millisecond is played once it is complete, so that the batches never split it.
        is_due = records.at_ms < self.horizon_ms if self.delay_ms else records.at_ms <= self.horizon_ms
        self.kept = used_columns(rows.take(pa.array(records.rows(is_complete & ~is_due))))
        due = np.flatnonzero(is_complete & is_due)
        outcomes, refused = self._play(rows, records, play_order(rows, records, due))
        owned = records.is_registration if self.number else np.ones(len(records), np.bool_)
        is_heartbeat = ~records.is_registration & (column_of(rows, "type")[records.start] == 0)
        broken = owned & ~is_late & (~known | ~records.is_complete) & ~is_heartbeat
        malformed = [quarantined(rows, records.rows(broken), BROKEN)]
        malformed += refused if not self.number else []
        late = quarantined(rows, records.rows(is_late & owned), "")
        return PlayedRows(outcomes, late, pa.concat_tables(malformed))

    def _play(self, rows: pa.Table, records: Records, order: Integers) -> tuple[pa.Table, list[pa.Table]]:
        if self.engine is None and not len(order):
            return OUTCOME_ROWS.empty_table(), []
        engine = self.engine or self.start_engine(int(records.at_ms[order[0]]))
        self.clock_ms = max(self.clock_ms, self.horizon_ms - bool(self.delay_ms))
        arriving = tape_of(rows, records, order, self.next_id, self.clock_ms, LIMITS.timeout_ms_default)
        repeats = self._add(rows, records, arriving)
        played = engine.play(self.owner, arriving.tape, prompt=True)
        if self.forget_ms:
            self._note_names(rows.take(pa.array(arriving.events)))
        refused = self._refused(rows, arriving, played)
        return self._outcomes(played, arriving, repeats), refused

    def _add(self, rows: pa.Table, records: Records, arriving: RowTape) -> Repeats:
        operations = arriving.operations
        if operations is None:
            return Repeats([])
        first = records.start[arriving.registrations]
        callers = rows.column("caller").take(pa.array(first)) if "caller" in rows.column_names else None
        more = pa.table(
            {
                "engine_id": operations.ids,
                "caller": pa.nulls(len(first), pa.string()).fill_null("") if callers is None else callers.fill_null(""),
                "operation_id": column_of(rows, "operation_id")[first],
                "registered_ms": operations.time,
            },
            schema=CALLERS,
        )
        hashes: Hashes = hashes_of(more.column("caller"), more.column("operation_id").to_numpy())
        repeats = Repeats.among(self.callers, more, hashes)
        self.callers.add(more, hashes)
        self.next_id += len(first)
        return repeats

    def _note_names(self, events: pa.Table) -> None:
        numbers = pa.array(column_of(events, "partition", -1))
        named = pa.table([_texts(events, "topic"), numbers, events.column("at_ms")], names=["topic", "number", "at"])
        last = named.group_by(["topic", "number"]).aggregate([("at", "max")])
        topics, partitions, times = (last.column(name).to_pylist() for name in ("topic", "number", "at_max"))
        self.named_ms.update(zip(zip(topics, partitions, strict=True), times, strict=True))

    def _refused(self, rows: pa.Table, arriving: RowTape, played: Played) -> list[pa.Table]:
        refusals = played.events.refusals
        if not refusals:
            return []
        places = arriving.events[[refusal.index for refusal in refusals]]
        return [quarantined(rows, places, [refusal_text(refusal) for refusal in refusals])]

    def _outcomes(self, played: Played, arriving: RowTape, repeats: Repeats) -> pa.Table:
        """Outcomes of refused and completed operations. Duplicates of a pending operation are cancelled instead."""
        assert self.engine is not None, "nothing was played"
        ids = [np.array(played.refused_ids, np.int64)]
        found = [self._refused_rows(played, arriving)]
        for ended in self.engine.take_completions():  # there is one owner
            ids.append(np.asarray(ended.operation_ids, np.int64))
            found.append(completed_rows(ended, self.callers.table.take(pa.array(self.callers.places(ids[-1])))))
        outcomes, ended_ids = pa.concat_tables(found), np.concatenate(ids)
        repeated = repeats.dropped(ended_ids, outcomes) if repeats else NOTHING
        self._forget(ended_ids)
        waiting = self.callers.present(repeated)
        if len(waiting):
            self.engine.perform(self.owner, Cancel(waiting.tolist()), self.clock_ms)
            self.engine.take_completions()
            self._forget(waiting)
        return outcomes.filter(pa.array(~np.isin(ended_ids, repeated))) if len(repeated) else outcomes

    def _refused_rows(self, played: Played, arriving: RowTape) -> pa.Table:
        if not played.refused_ids:
            return OUTCOME_ROWS.empty_table()
        assert arriving.operations is not None, f"refused {played.refused_ids[:3]}, nothing was registered"
        refused = np.array(played.refused_ids, np.int64)
        kinds = arriving.operations.kind[refused - arriving.operations.ids[0]]
        return refused_rows(played.refusals, self.callers.table.take(pa.array(self.callers.places(refused))), kinds)

    def _forget(self, engine_ids: Integers) -> None:
        kept = np.ones(len(self.callers), np.bool_)
        kept[self.callers.places(engine_ids)] = False
        self.callers.keep(kept)


def known_records(rows: pa.Table, records: Records) -> Flags:
    """Mask of operations of a known kind with a valid id and events of a known type; heartbeats are False."""
    kind, kind_of_event = (column_of(rows, name)[records.start] for name in ("kind", "type"))
    is_operation = np.isin(kind, KINDS) & (column_of(rows, "operation_id")[records.start] >= 1)
    return np.where(records.is_registration, is_operation, np.isin(kind_of_event, list(EVENT_NAMES)))


def used_columns(rows: pa.Table) -> pa.Table:
    """Drop the columns that are entirely null, except `at_ms`."""
    return rows.select(
        [name for name in rows.column_names if name == "at_ms" or rows.column(name).null_count < len(rows)]
    )


def quarantined(rows: pa.Table, places: Integers, reason: str | Sequence[str]) -> pa.Table:
    if not len(places):
        return QUARANTINED.empty_table()
    chosen = rows.take(pa.array(places))
    reasons = [reason] * len(places) if isinstance(reason, str) else list(reason)
    columns = {
        field.name: chosen.column(field.name)
        if field.name in chosen.column_names
        else pa.nulls(len(places), field.type)
        for field in ROWS
    }
    return pa.table({**columns, "reason": pa.array(reasons, pa.string())}, schema=QUARANTINED)


def refusal_text(refusal: Refusal) -> str:
    return f"{refusal.field}: {refusal.message}" if refusal.field else refusal.message
