"""Plays a run on the real engine in virtual time, and records its calls as rows of the archive.

All rows go through the code of the daemon's archive. Before each call the clock is advanced as an ideal reaper would,
but for a small lateness of some of its turns.
"""

import gc
from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.archive import schema
from purgatory.archive.files import ArchiveWriter
from purgatory.archive.records import (
    Names,
    Record,
    completion_records,
    event_records,
    registration_records,
    row_record,
)
from purgatory.archive.rows import rows_by_table
from purgatory.archive.vocabulary import NO_SESSION, CallStamp
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import KEY_SIGNALLED, KINDS, SIGNAL
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import columns_of
from purgatory.engine.limits import EngineLimits
from purgatory_pipeline.generate.draw import schedule
from purgatory_pipeline.generate.draw.arrivals import REGISTRANTS, UNARY, WITHOUT_EPOCHS
from purgatory_pipeline.generate.draw.drawn_run import DrawnRun
from purgatory_pipeline.generate.draw.topology import Flags, Ints

CALLS_PER_CHUNK: Final = 2_048
ENDED_PER_CALL: Final = 2_000
"""As many as the daemon's reaper."""

LIMITS: Final = EngineLimits()
OPERATION_COLUMNS: Final = {
    kind: {"operation_ids", "timeouts_ms", "item_indexes", *(column.batch_name for column in columns_of(kind))}
    for kind in KINDS
}
"""What can be said of the operations of each kind."""


class CallBatches:
    """The batches of a chunk of calls. Columns become lists once, from which each call takes its rows."""

    def __init__(self, run: DrawnRun, first: int, stop: int) -> None:
        self._run: Final = run
        calls = run.calls
        what, start, end = (column[first:stop] for column in (calls.what, calls.start, calls.stop))
        self._first_event, rows = _extent(start, end, what == schedule.EVENTS)
        self._events: Final = {name: run.events[name][rows].tolist() for name in schedule.NUMBERS[1:]}
        self._first, rows = _extent(start, end, what == schedule.REGISTER)
        arrivals, requests = run.arrivals, run.requests
        self._session: Final = arrivals.session[rows].tolist()
        self._kind: Final = arrivals.kind[rows].tolist()
        self._first_items: Final = arrivals.first_item[rows.start : rows.stop + 1].tolist()
        items = slice(self._first_items[0], self._first_items[-1])
        self._item_counts: Final = np.diff(self._first_items).tolist()
        operations = {"operation_ids": arrivals.operation_id, **requests.operations}
        self._operations: Final = {name: column[rows].tolist() for name, column in operations.items()}
        of_items = {"item_indexes": run.item_index, **requests.items}
        self._items: Final = {name: column[items].tolist() for name, column in of_items.items()}
        self._places: Final = arrivals.item_place[items].tolist()

    def events(self, start: int, stop: int) -> EventBatch:
        rows = slice(start - self._first_event, stop - self._first_event)
        columns: dict[str, Any] = {name: column[rows] for name, column in self._events.items()}
        return EventBatch(partitions=self._run.cluster.names, **columns)

    def operations(self, start: int, stop: int) -> tuple[int, int, OperationBatch]:
        """Session, kind and batch of these operations."""
        first = start - self._first
        rows = slice(first, stop - self._first)
        session, kind = self._session[first], self._kind[first]
        before = self._first_items[0]
        items = slice(self._first_items[first] - before, self._first_items[rows.stop] - before)
        both = ((self._operations, rows), (self._items, items))
        columns: dict[str, Any] = {
            name: column[part]
            for whole, part in both
            for name, column in whole.items()
            if name in OPERATION_COLUMNS[kind]
        }
        if items.stop - items.start > len(columns["operation_ids"]):
            columns["item_counts"] = self._item_counts[rows]
        if session == WITHOUT_EPOCHS:
            columns.pop("leader_epochs", None)
        if kind == SIGNAL:
            columns["keys"] = self._run.keys
        elif session == UNARY:
            columns["partitions"] = [self._run.cluster.names[place] for place in self._places[items]]
            del columns["item_indexes"]
        else:
            columns["partitions"] = self._run.session_names[session]
        return session, kind, OperationBatch(**columns)


def _extent(start: Ints, stop: Ints, chosen: Flags) -> tuple[int, slice]:
    """The rows of the chosen calls, which are contiguous."""
    if not chosen.any():
        return 0, slice(0, 0)
    return int(start[chosen].min()), slice(int(start[chosen].min()), int(stop[chosen].max()))


class EnginePlayer:
    """One run on one engine. After `play`, `tally` has the operations by (topic or key, kind, outcome)."""

    def __init__(self, run: DrawnRun, writer: ArchiveWriter) -> None:
        self.tally: Final[Counter[tuple[str, str, str]]] = Counter()
        self.rows: Final[Counter[str]] = Counter()
        self.call_number = 0
        self._run: Final = run
        self._writer: Final = writer
        self._engine: Final = Engine(LIMITS, 0)
        self._owners: Final = [self._engine.add_owner() for _ in REGISTRANTS]
        self._turn = 0
        self._now_ms = 0
        self._names: Final[Names] = {}
        self._records: Final[list[Record]] = []

    def play(self) -> None:
        """Plays the whole run, up to a shutdown of what is still pending."""
        collecting = gc.isenabled()
        gc.disable()  # everything here is acyclic, and a chunk is freed with its last reference
        try:
            count = len(self._run.calls.what)
            for first in range(0, count, CALLS_PER_CHUNK):
                self._play_chunk(first, min(first + CALLS_PER_CHUNK, count))
                self._write()
            self._shut_down()
            self._write()
        finally:
            if collecting:
                gc.enable()

    def _play_chunk(self, first: int, stop: int) -> None:
        calls = self._run.calls
        columns = (calls.what, calls.time_ms, calls.start, calls.stop)
        messages = CallBatches(self._run, first, stop)
        for what, time_ms, start, end in zip(*(column[first:stop].tolist() for column in columns), strict=True):
            self._expire(time_ms)
            if what == schedule.REGISTER:
                self._register(messages, time_ms, start, end)
            elif what == schedule.EVENTS:
                self._apply(messages.events(start, end), time_ms)
            elif what == schedule.SIGNALS:
                keys = self._run.signalled[start:end].tolist()
                batch = EventBatch([KEY_SIGNALLED] * len(keys), keys=self._run.keys, item_indexes=keys, offsets=[1])
                self._apply(batch, time_ms)
            elif what == schedule.RARE:
                self._apply(self._run.rare[start], time_ms)
            elif what == schedule.CANCEL:
                self._cancel(time_ms, start, end)
            else:
                self._cancel_all_of(what, time_ms)

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
            whose = REGISTRANTS[completions.owner_id]
            self._records.extend(completion_records(self._names, stamp, whose, completions))

    def _register(self, messages: CallBatches, time_ms: int, start: int, end: int) -> None:
        session, kind, batch = messages.operations(start, end)
        receipt = self._engine.register(self._owners[session], kind, batch, time_ms)
        assert not receipt.refusals, f"refused: {receipt.refusals[0].field} {receipt.refusals[0].message}"
        stamp = self._stamp(time_ms)
        whose, timeout_ms = REGISTRANTS[session], LIMITS.timeout_ms_default
        self._records.extend(registration_records(self._names, stamp, whose, kind, batch, receipt, timeout_ms))
        self._take(stamp)

    def _apply(self, batch: EventBatch, time_ms: int) -> None:
        start = 0
        while start < len(batch.types):
            receipt = self._engine.apply(batch, time_ms, start, 1_000_000_000)
            stamp = self._stamp(time_ms)
            self._records.extend(event_records(self._names, stamp, NO_SESSION, batch, start, receipt))
            self._take(stamp)
            start = receipt.next_index

    def _cancel(self, time_ms: int, start: int, end: int) -> None:
        operations = self._run.cancelled[start:end]
        session = int(self._run.arrivals.session[operations[0]])
        ids = self._run.arrivals.operation_id[operations].tolist()
        ended = sum(self._engine.cancel(self._owners[session], ids, time_ms))
        number = REGISTRANTS[session].session_number
        self._note(schema.CANCEL, time_ms, session_number=number, operation_ids=ids, ended=ended)

    def _cancel_all_of(self, what: int, time_ms: int) -> None:
        if what == schedule.CANCEL_PARTITION:
            name = self._run.cluster.names[-1]
            ended = self._engine.cancel_partition(name, time_ms)
            self._note(schema.CANCEL_PARTITION, time_ms, topic=name[0], partition=name[1], ended=ended)
        else:
            assert what == schedule.CANCEL_KEY, f"a call of kind {what}"
            key = self._run.keys[-1]
            ended = self._engine.cancel_key(key, time_ms)
            self._note(schema.CANCEL_KEY, time_ms, topic=key, partition=schema.NO_PARTITION, ended=ended)

    def _shut_down(self) -> None:
        end_ms = self._run.end_ms
        self._expire(end_ms)
        while True:
            ended = self._engine.shut_down(end_ms, ENDED_PER_CALL)
            if ended == 0:
                break
            self._note(schema.SHUT_DOWN, end_ms, ended=ended)

    def _note(self, call: str, time_ms: int, **values: object) -> None:
        stamp = self._stamp(time_ms)
        self._records.append(row_record(schema.CALLS, stamp, call=call, **values))
        self._take(stamp)

    def _write(self) -> None:
        for table, rows in rows_by_table(self._records, list(self._names)).items():
            self.rows[table] += rows.num_rows
            self._writer.write(table, rows)
            if table == schema.OUTCOMES:
                self._count(rows)
        self._records.clear()
        self._names.clear()

    def _count(self, outcomes: pa.RecordBatch) -> None:
        """Sums operations up by the name of their first item, kind and outcome."""
        first = pa.Table.from_batches([outcomes]).filter(pc.field("item") == 0)
        names = ["topic", "kind", "outcome"]
        words = pa.table({name: first.column(name).cast(pa.string()) for name in names})
        for row in words.group_by(names).aggregate([([], "count_all")]).to_pylist():
            self.tally[row["topic"], row["kind"], row["outcome"]] += row["count_all"]
