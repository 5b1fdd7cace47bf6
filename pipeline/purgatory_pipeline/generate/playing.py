"""Plays a run: the real engine on virtual time, and what it was told and gave, as rows of the archive.

Everything goes through the same row code as the daemon's archive. Before each call the clock is advanced as an ideal
reaper would, but for a small lateness of some of its turns.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from purgatory.archive import schema
from purgatory.archive.gathering import CallStamp
from purgatory.archive.rows import EventRows, OutcomeRows, RegistrationRows, SingleRows, call_values
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import DELETE_RECORDS, FETCH, KEY_SIGNALLED, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory_pipeline.generate.arrivals import REGISTRANTS, WITHOUT_EPOCHS
from purgatory_pipeline.generate.run import Run
from purgatory_pipeline.generate.timeline import CANCEL, CANCEL_KEY, CANCEL_PARTITION, EVENTS, RARE, REGISTER, SIGNALS

CALLS_PER_CHUNK: Final = 8_192
ENDED_PER_CALL: Final = 2_000
"""As the daemon's reaper does it."""

LIMITS: Final = EngineLimits()


class Sink(Protocol):
    """Where rows go: an `ArchiveWriter`, or a test."""

    def write(self, table: str, rows: pa.RecordBatch) -> None:
        """Takes rows of a table."""


class Player:
    """One run on one engine. `play` it once; `tally` then has the operations by (topic or key, kind, outcome)."""

    def __init__(self, run: Run, sink: Sink) -> None:
        self.tally: Final[Counter[tuple[str, str, str]]] = Counter()
        self.rows: Final[Counter[str]] = Counter()
        self.call_number = 0
        self._run: Final = run
        self._sink: Final = sink
        self._engine: Final = Engine(LIMITS, 0)
        self._owners: Final = [self._engine.add_owner() for _ in REGISTRANTS]
        self._turn = 0
        self._now_ms = 0
        self._registrations: Final = RegistrationRows()
        self._outcomes: Final = OutcomeRows()
        self._events: Final = EventRows()
        self._calls: Final = SingleRows(schema.CALLS)

    def play(self) -> None:
        """The whole run, up to a shutdown of what is still pending."""
        collecting = gc.isenabled()
        gc.disable()  # everything here is acyclic, and a chunk is freed with its last reference
        try:
            for first in range(0, len(self._run.calls.what), CALLS_PER_CHUNK):
                self._play_chunk(first, min(first + CALLS_PER_CHUNK, len(self._run.calls.what)))
                self._write()
            self._shut_down()
            self._write()
        finally:
            if collecting:
                gc.enable()

    def _play_chunk(self, first: int, stop: int) -> None:
        calls = self._run.calls
        columns = (calls.what, calls.time_ms, calls.start, calls.stop)
        messages = _Messages(self._run, first, stop)
        for what, time_ms, start, end in zip(*(column[first:stop].tolist() for column in columns), strict=True):
            self._expire(time_ms)
            if what == REGISTER:
                self._register(messages, time_ms, start, end)
            elif what == EVENTS:
                self._apply(messages.events(start, end), time_ms)
            elif what == SIGNALS:
                keys = self._run.timeline.signalled[start:end].tolist()
                batch = EventBatch([KEY_SIGNALLED] * len(keys), keys=self._run.keys, item_indexes=keys, offsets=[1])
                self._apply(batch, time_ms)
            elif what == RARE:
                self._apply(self._run.timeline.rare[start], time_ms)
            elif what == CANCEL:
                self._cancel(time_ms, start, end)
            else:
                self._cancel_all_of(what, time_ms)

    # Calls.

    def _stamp(self, time_ms: int) -> CallStamp:
        self.call_number += 1
        return CallStamp(self._run.plan.run_id, self.call_number, time_ms, self._run.plan.start_ms + time_ms)

    def _expire(self, until_ms: int) -> None:
        """What the reaper does up to an instant, turn by turn."""
        engine = self._engine
        while True:
            next_ms = engine.next_expiration_ms()
            if next_ms < 0:
                break
            due_ms = max(next_ms + self._run.lateness_ms[self._turn], self._now_ms)
            if due_ms > until_ms:
                break
            self._now_ms = due_ms
            if engine.advance_clock(due_ms, ENDED_PER_CALL):
                self._take(self._stamp(due_ms))
            if engine.next_expiration_ms() > due_ms or engine.next_expiration_ms() < 0:
                self._turn = (self._turn + 1) % len(self._run.lateness_ms)
        self._now_ms = until_ms

    def _take(self, stamp: CallStamp) -> None:
        for completions in self._engine.take_completions():
            self._outcomes.add(stamp, REGISTRANTS[completions.owner_id], completions)

    def _register(self, messages: _Messages, time_ms: int, start: int, end: int) -> None:
        session, kind, batch = messages.operations(start, end)
        receipt = self._engine.register(self._owners[session], kind, batch, time_ms)
        assert not receipt.refusals, f"refused: {receipt.refusals[0].field} {receipt.refusals[0].message}"
        stamp = self._stamp(time_ms)
        self._registrations.add(stamp, REGISTRANTS[session], kind, batch, receipt, LIMITS.timeout_ms_default)
        self._take(stamp)

    def _apply(self, batch: EventBatch, time_ms: int) -> None:
        start = 0
        while start < len(batch.types):
            receipt = self._engine.apply(batch, time_ms, start, 1_000_000_000)
            stamp = self._stamp(time_ms)
            self._events.add(stamp, batch, start, receipt)
            self._take(stamp)
            start = receipt.next_index

    def _cancel(self, time_ms: int, start: int, end: int) -> None:
        operations = self._run.timeline.cancelled[start:end]
        session = int(self._run.arrivals.session[operations[0]])
        ids = self._run.arrivals.operation_id[operations].tolist()
        ended = sum(self._engine.cancel(self._owners[session], ids, time_ms))
        number = REGISTRANTS[session].session_number
        self._note(time_ms, call_values(schema.CANCEL, session_number=number, operation_ids=ids, ended=ended))

    def _cancel_all_of(self, what: int, time_ms: int) -> None:
        if what == CANCEL_PARTITION:
            name = self._run.cluster.names[-1]
            ended = self._engine.cancel_partition(name, time_ms)
            values = call_values(schema.CANCEL_PARTITION, topic=name[0], partition=name[1], ended=ended)
        else:
            assert what == CANCEL_KEY, f"a call of kind {what}"
            key = self._run.keys[-1]
            ended = self._engine.cancel_key(key, time_ms)
            values = call_values(schema.CANCEL_KEY, topic=key, partition=schema.NO_PARTITION, ended=ended)
        self._note(time_ms, values)

    def _shut_down(self) -> None:
        end_ms = self._run.timeline.end_ms
        self._expire(end_ms)
        while True:
            ended = self._engine.shut_down(end_ms, ENDED_PER_CALL)
            if ended == 0:
                break
            self._note(end_ms, call_values(schema.SHUT_DOWN, ended=ended))

    def _note(self, time_ms: int, values: dict[str, object]) -> None:
        stamp = self._stamp(time_ms)
        self._calls.add(stamp, values)
        self._take(stamp)

    # Rows.

    def _write(self) -> None:
        for table, gathered in (
            (schema.REGISTRATIONS, self._registrations),
            (schema.OUTCOMES, self._outcomes),
            (schema.EVENTS, self._events),
            (schema.CALLS, self._calls),
        ):
            if gathered.rows:
                rows = gathered.take()
                self.rows[table] += rows.num_rows
                self._sink.write(table, rows)
                if table == schema.OUTCOMES:
                    self._count(rows)

    def _count(self, outcomes: pa.RecordBatch) -> None:
        """Adds operations up by the name of their first item, kind and outcome."""
        columns = [outcomes.column(name) for name in ("topic", "kind", "outcome")]
        words = [column.dictionary.to_pylist() for column in columns]
        first = outcomes.column("item").to_numpy() == 0
        indices = [column.indices.to_numpy()[first] for column in columns]
        shape = [len(part) for part in words]
        counts = np.bincount(np.ravel_multi_index(indices, shape), minlength=int(np.prod(shape))).reshape(shape)
        for name, kind, outcome in zip(*np.nonzero(counts), strict=True):
            self.tally[words[0][name], words[1][kind], words[2][outcome]] += int(counts[name, kind, outcome])


class _Messages:
    """The batches of a chunk of calls: its columns as lists, once, from which each call takes its rows."""

    def __init__(self, run: Run, first: int, stop: int) -> None:
        self._run: Final = run
        calls = run.calls
        what, start, end = (column[first:stop] for column in (calls.what, calls.start, calls.stop))
        self._first_event, event_rows = _extent(start, end, what == EVENTS)
        events = run.events
        self._events: Final = [
            column[event_rows].tolist()
            for column in (
                events.type, events.partition, events.offset, events.leader_epoch, events.replica_id,
                events.byte_position, events.segment_base_offset, events.log_start_offset,
            )
        ]  # fmt: skip
        self._first, rows = _extent(start, end, what == REGISTER)
        arrivals, requests = run.arrivals, run.requests
        self._session: Final = arrivals.session[rows].tolist()
        self._kind: Final = arrivals.kind[rows].tolist()
        self._first_items: Final = arrivals.first_item[rows.start : rows.stop + 1].tolist()
        items = slice(self._first_items[0], self._first_items[-1])
        self._operations: Final = [
            column[rows].tolist()
            for column in (
                arrivals.operation_id, requests.timeout_ms, np.diff(arrivals.first_item), requests.min_bytes,
                requests.replica_id, requests.isolation_level, requests.any_key, requests.from_now,
            )
        ]  # fmt: skip
        self._items: Final = [
            column[items].tolist() for column in (run.item_index, requests.offset, requests.leader_epoch)
        ]
        self._places: Final = arrivals.item_place[items].tolist()

    def events(self, start: int, stop: int) -> EventBatch:
        """The events of these rows."""
        rows = slice(start - self._first_event, stop - self._first_event)
        types, partitions, offsets, epochs, replica_ids, positions, segments, log_starts = self._events
        return EventBatch(
            types[rows],
            partitions=self._run.cluster.names,
            item_indexes=partitions[rows],
            offsets=offsets[rows],
            leader_epochs=epochs[rows],
            replica_ids=replica_ids[rows],
            byte_positions=positions[rows],
            segment_base_offsets=segments[rows],
            log_start_offsets=log_starts[rows],
        )

    def operations(self, start: int, stop: int) -> tuple[int, int, OperationBatch]:
        """Session, kind and batch of these operations."""
        first = start - self._first
        rows = slice(first, stop - self._first)
        session, kind = self._session[first], self._kind[first]
        items = slice(
            self._first_items[first] - self._first_items[0], self._first_items[rows.stop] - self._first_items[0]
        )
        ids, timeouts_ms, item_counts, min_bytes, replica_ids, isolation_levels, any_key, from_now = (
            column[rows] for column in self._operations
        )
        indexes, offsets, epochs = (column[items] for column in self._items)
        if len(indexes) == len(ids):
            item_counts = []
        if session == WITHOUT_EPOCHS:
            epochs = []
        if kind == DELETE_RECORDS:
            name = self._run.cluster.names[self._places[items.start]]
            return session, kind, OperationBatch(ids, partitions=[name], offsets=offsets, timeouts_ms=timeouts_ms)
        if kind == PRODUCE:
            return (
                session,
                kind,
                OperationBatch(
                    ids,
                    partitions=self._run.session_names[session],
                    timeouts_ms=timeouts_ms,
                    item_counts=item_counts,
                    item_indexes=indexes,
                    offsets=offsets,
                    leader_epochs=epochs,
                ),
            )
        if kind == FETCH:
            return (
                session,
                kind,
                OperationBatch(
                    ids,
                    partitions=self._run.session_names[session],
                    timeouts_ms=timeouts_ms,
                    item_counts=item_counts,
                    item_indexes=indexes,
                    offsets=offsets,
                    leader_epochs=epochs,
                    min_bytes=min_bytes,
                    replica_ids=replica_ids,
                    isolation_levels=isolation_levels,
                ),
            )
        return (
            session,
            kind,
            OperationBatch(
                ids,
                keys=self._run.keys,
                timeouts_ms=timeouts_ms,
                item_counts=item_counts,
                item_indexes=indexes,
                offsets=offsets,
                any_key=any_key,
                from_now=from_now,
            ),
        )


def _extent(start: np.ndarray, stop: np.ndarray, chosen: np.ndarray) -> tuple[int, slice]:
    """The rows that the chosen calls are about: they follow each other."""
    if not chosen.any():
        return 0, slice(0, 0)
    return int(start[chosen].min()), slice(int(start[chosen].min()), int(stop[chosen].max()))
