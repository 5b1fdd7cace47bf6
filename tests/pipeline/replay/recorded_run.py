"""Lives of the simulator with an archive: the same rows that a daemon would have kept, without the daemon."""

import random
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
from purgatory_pipeline.engine_rows.arrow_chunks import chunk_of
from purgatory_pipeline.engine_rows.row_chunk import TABLES, RowChunk

from purgatory.engine.waiting.tables import Owner
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.records import (
    Names,
    Record,
    completion_records,
    event_records,
    registration_records,
    row_record,
)
from purgatory.extensions.archive.rows import rows_by_table
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.vocabulary import NO_SESSION, CallStamp, Registrant
from tests.engine import plain
from tests.engine.adapter import event_batch, operation_batch
from tests.simulator import steps
from tests.simulator.generator import Generator

Tables = dict[str, pa.Table]

WALL_MS = 1_700_000_000_000
"""Wall-clock time at the engine's 0 ms."""


class RecordedRun:
    """An engine under the simulator's steps, and the rows of what it was told and gave. `details` are its settings."""

    def __init__(self, generator: Generator, run_id: str = "run-a") -> None:
        settings = generator.swarm.settings
        self.run_id = run_id
        self.details = RunDetails(
            version="test",
            tick_ms=settings.tick_ms,
            wheel_size=settings.wheel_size,
            strict_partitions=settings.strict,
            replica_lag_time_max_ms=settings.lag_max_ms,
        )
        self.first_ms = self.now_ms = settings.now_ms
        self.call_number = 0
        self._names: Names = {}
        self._records: list[Record] = []
        self._engine = self.details.make_engine(self.now_ms)
        self._owners: list[tuple[Owner, Registrant]] = []
        self._sessions = 0
        for _ in range(generator.swarm.owners):
            self._owners.append(self._open())
        self._mark(schema.STARTED, self.details.to_json())

    def take(self, sequence: Iterable[steps.Step]) -> None:
        """Lives through some steps."""
        for step in sequence:
            self._step(step)

    def end(self) -> None:
        """The daemon is drained."""
        while ended := self._engine.shut_down(self.now_ms, 3):
            self._note_call(schema.SHUT_DOWN, ended=ended)
        self._mark(schema.ENDED)

    def tables(self) -> Tables:
        """All rows so far, by table; they are handed over."""
        rows = rows_by_table(self._records, list(self._names))
        self._records.clear()
        self._names.clear()
        return {
            name: pa.Table.from_batches([rows[name]] if name in rows else [], schema=schema.SCHEMAS[name])
            for name in schema.TABLES
        }

    def _step(self, step: steps.Step) -> None:
        match step:
            case steps.Register(owner, operations):
                self._register(owner, list(operations))
            case steps.Apply(events, limit):
                self._apply(list(events), limit)
            case steps.Advance(ms, limit):
                self.now_ms += ms
                if self._engine.advance_clock(self.now_ms, limit):
                    self._stamp()
                    self._take_outcomes()
            case steps.Sleep(ms):
                self.now_ms += ms
            case steps.Cancel(owner, operation_ids):
                self._cancel(owner, list(operation_ids))
            case steps.CancelAll(owner):
                self._cancel_session(owner)
            case steps.CancelName(name):
                self._cancel_name(name)
            case steps.FailStale(stale):
                self._fail_stale(dict(stale))
            case steps.ReplaceOwner(owner):
                self._cancel_session(owner)
                self._engine.remove_owner(self._owners[owner][0], self.now_ms)
                self._owners[owner] = self._open()
            case steps.ShutDown(limit):
                ended = self._engine.shut_down(self.now_ms, limit)
                self._note_call(schema.SHUT_DOWN, ended=ended)

    def _register(self, owner: int, operations: list[plain.Operation]) -> None:
        kind, batch = operations[0].kind, operation_batch(operations)
        receipt = self._engine.register(self._owners[owner][0], kind, batch, self.now_ms)
        if len(operations) > receipt.already_known:
            whose = self._owners[owner][1]
            self._records += registration_records(self._names, self._stamp(), whose, kind, batch, receipt, 30_000)
            self._take_outcomes()

    def _apply(self, events: list[plain.Event], limit: int) -> None:
        batch, start = event_batch(events), 0
        while start < len(events):
            receipt = self._engine.apply(batch, self.now_ms, start, limit)
            self._records += event_records(self._names, self._stamp(), NO_SESSION, batch, start, receipt)
            self._take_outcomes()
            start = receipt.next_index

    def _cancel(self, owner: int, operation_ids: list[int]) -> None:
        engine_owner, registrant = self._owners[owner]
        ended = sum(self._engine.cancel(engine_owner, operation_ids, self.now_ms))
        number = registrant.session_number
        self._note_call(schema.CANCEL, session_number=number, operation_ids=operation_ids, ended=ended)

    def _cancel_session(self, owner: int) -> None:
        engine_owner, registrant = self._owners[owner]
        ended = self._engine.cancel_all(engine_owner, self.now_ms)
        number = registrant.session_number
        self._note_call(schema.CANCEL_SESSION, session_number=number, ended=ended)

    def _cancel_name(self, name: plain.Name) -> None:
        topic, partition = name
        if partition < 0:
            call, ended = schema.CANCEL_KEY, self._engine.cancel_key(topic, self.now_ms)
        else:
            call, ended = schema.CANCEL_PARTITION, self._engine.cancel_partition(name, self.now_ms)
        self._note_call(call, topic=topic, partition=partition, ended=ended)

    def _fail_stale(self, stale_ms: dict[plain.Name, int]) -> None:
        waits = self._engine.stale_waits
        due = waits.due(waits.slots(), stale_ms, self.now_ms)
        for owner, registrant in list(self._owners):
            ids = [waits.operation_id(slot) for slot in due if waits.owner_id(slot) == owner.owner_id]
            if not ids:
                continue
            ended = sum(self._engine.fail_stale(owner, ids, set(stale_ms), self.now_ms))
            stamp, values = self._stamp(), {"call": schema.FAIL_STALE, "session_number": registrant.session_number}
            for place, (topic, partition) in enumerate(stale_ms):
                of_first = {"operation_ids": [] if place else ids, "ended": 0 if place else ended}
                values |= {"topic": topic, "partition": partition, **of_first}
                self._records.append(row_record(schema.CALLS, stamp, **values))
            self._take_outcomes()

    def _open(self) -> tuple[Owner, Registrant]:
        self._sessions += 1
        return self._engine.add_owner(), Registrant(self._sessions, f"session-{self._sessions}")

    def _stamp(self) -> CallStamp:
        self.call_number += 1
        return self._last_stamp()

    def _last_stamp(self) -> CallStamp:
        return CallStamp(self.run_id, self.call_number, self.now_ms, WALL_MS + self.now_ms)

    def _note_call(self, call: str, **values: object) -> None:
        self._records.append(row_record(schema.CALLS, self._stamp(), call=call, **values))
        self._take_outcomes()

    def _take_outcomes(self) -> None:
        registrants = {owner.owner_id: registrant for owner, registrant in self._owners}
        for completions in self._engine.take_completions():
            whose = registrants[completions.owner_id]
            self._records += completion_records(self._names, self._last_stamp(), whose, completions)

    def _mark(self, marker: str, detail: str | None = None) -> None:
        self._records.append(row_record(schema.MARKERS, self._last_stamp(), marker=marker, detail=detail))


def record_run(seed: int, batches: int, *, end: bool = True) -> RecordedRun:
    """A life of a seed, and, unless told otherwise, its end."""
    generator = Generator(seed)
    recorded = RecordedRun(generator)
    recorded.take(generator.next_step() for _ in range(batches))
    if end:
        recorded.end()
    return recorded


def chunks_of(tables: Tables, rng: random.Random, rows_max: int = 60) -> list[RowChunk]:
    """All rows in chunks of random sizes, as of many files and row groups, by first call."""
    chunks = [chunk_of(table, piece, Counter()) for table in TABLES for piece in _pieces(tables[table], rng, rows_max)]
    return sorted((chunk for chunk in chunks if len(chunk)), key=lambda chunk: chunk.first_call)


def _pieces(table: pa.Table, rng: random.Random, rows_max: int) -> list[pa.Table]:
    cut = []
    start = 0
    while start < table.num_rows:
        rows = rng.randint(1, rows_max)
        cut.append(table.slice(start, rows))
        start += rows
    return cut
