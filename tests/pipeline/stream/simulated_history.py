"""A random history of calls, as one engine lives it call by call, as rows for a stream, and as files of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from purgatory_pipeline.stream.shard import LIMITS
from purgatory_pipeline.stream.stream_rows import ROWS
from purgatory_pipeline.stream.wire_records import AT_MS_MAX, EVENT, OPERATION, RecordRows

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.codes import EVENT_NAMES, KIND_NAMES, OUTCOME_NAMES
from purgatory.engine.engine import Engine
from tests.engine import plain
from tests.engine.adapter import ended_of, event_batch, operation_batch
from tests.histories.plan import Generator, Step
from tests.scripts.messages import Names, event_row, operation_row

START_MS = 1_700_000_000_000
Row = dict[str, Any]
Outcome = tuple[Any, ...]
"""Caller, id, registered when, kind, outcome, waited, and its items; a refused one has its reason for items."""


class Record(NamedTuple):
    side: str
    at_ms: int
    caller: str
    octets: bytes


class DirectEngine:
    """An engine that is called directly, and everything expires when it is due: what a stream's outcomes must be."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.refused_events = 0
        self.now_ms = START_MS
        self._engine = Engine(LIMITS, START_MS)
        self._owner = self._engine.add_owner()
        self._whose: dict[int, tuple[str, int, int]] = {}
        self._ended_ms: dict[tuple[str, int], int] = {}
        self._pending: set[tuple[str, int]] = set()
        self._next_id = 1

    def pass_time(self, now_ms: int) -> None:
        while 0 <= self._engine.next_expiration_ms() <= now_ms:
            self.now_ms = max(self.now_ms, self._engine.next_expiration_ms())
            self._engine.perform(None, PassTime(1_000_000), self.now_ms)
            self._collect()
        self.now_ms = now_ms

    def end_all(self) -> None:
        while self._engine.next_expiration_ms() >= 0:
            self.pass_time(self._engine.next_expiration_ms())

    def register(self, caller: str, operation_id: int, kind: int, batch: Callable[[int], OperationBatch]) -> None:
        """One operation, unless it waits already. `batch` gives it with the engine's own id, as callers' may fall."""
        self.pass_time(self.now_ms)
        key = caller, operation_id
        if key in self._pending or self._ended_ms.get(key) == self.now_ms:
            return
        self._whose[self._next_id] = (*key, self.now_ms)
        self._pending.add(key)
        receipt = self._engine.perform(self._owner, Register(kind, batch(self._next_id)), self.now_ms)
        for refusal in receipt.refusals:
            self._end(self._next_id, kind, "refused", 0, f"{refusal.field}: {refusal.message}")
        self._next_id += 1
        self._collect()

    def apply(self, batch: EventBatch) -> None:
        self.pass_time(self.now_ms)
        self.refused_events += len(self._engine.perform(None, Apply(batch), self.now_ms).refusals)
        self._collect()

    def _collect(self) -> None:
        for completions in self._engine.take_completions():
            for ended in ended_of(completions):
                items = tuple(item_of(item, is_fetch=ended.kind == plain.FETCH) for item in ended.items)
                self._end(ended.operation_id, ended.kind, OUTCOME_NAMES[ended.outcome], ended.waited_ms, items)

    def _end(self, engine_id: int, kind: int, outcome: str, waited_ms: int, items: object) -> None:
        caller, operation_id, registered_ms = self._whose.pop(engine_id)
        self._pending.remove((caller, operation_id))
        self._ended_ms[caller, operation_id] = registered_ms + waited_ms
        row = (caller, operation_id, registered_ms, KIND_NAMES[kind], outcome, waited_ms, items)
        self.outcomes.append(row)


class SimulatedHistory:
    """A history as rows for a stream, in order, and the outcomes that a single engine gives for it."""

    def __init__(self, sequence: Iterable[Step]) -> None:
        self.rows: list[Row] = []
        self.records: list[Record] = []
        self.operations: list[plain.Operation] = []
        self._direct = DirectEngine()
        for step in sequence:
            self._take(step)
        self._direct.end_all()
        self.outcomes: list[Outcome] = self._direct.outcomes
        self.refused_events = self._direct.refused_events
        self.end_ms = self._direct.now_ms + 1
        """When all has ended that can."""

    @staticmethod
    def of_seed(seed: int, step_count: int, *, crowded: bool = False) -> SimulatedHistory:
        """The history that the history machine draws from a seed.

        `crowded`: everything happens at once, to a few callers, ids, partitions and milliseconds.
        """
        generator = generator_of(seed)
        swarm = generator.swarm
        if not crowded:
            return SimulatedHistory(generator.steps(step_count))
        swarm.owners, swarm.timeout_min_ms, swarm.timeout_max_ms, swarm.leap_max_ms = 1, 0, 4, 2
        del generator.sketches[2:], generator.keys[2:]
        return SimulatedHistory(map(with_few_ids, generator.steps(step_count)))

    def _take(self, step: Step) -> None:
        """A stream has no calls but registrations and events."""
        if step.pass_ms or isinstance(step.call, PassTime):
            self._direct.pass_time(self._direct.now_ms + step.pass_ms)
        for row in step.rows:
            if isinstance(row, plain.Operation) and row.items:
                caller = f"caller {step.owner}"
                if self._add(OPERATION, caller, operation_row(row).SerializeToString()):
                    self.operations.append(row)
                    batch = partial(batch_of, row)
                    self._direct.register(caller, row.operation_id, row.kind, batch)
            elif isinstance(row, plain.Event) and self._add(EVENT, "", event_row(row, Names("")).SerializeToString()):
                self._direct.apply(event_batch([row]))

    def _add(self, side: str, caller: str, octets: bytes) -> bool:
        """Whether a stream can read the record; `test_wire_records` tests which it can."""
        record = Record(side, self._direct.now_ms, caller, octets)
        rows = RecordRows(side, is_json=False)
        rows.add(octets, record.at_ms, len(self.records), caller)
        found: list[Row] = rows.tables()[0].to_pylist()
        if found:
            self.records.append(record)
            self.rows += found
        return bool(found)


def batch_of(operation: plain.Operation, engine_id: int) -> OperationBatch:
    return operation_batch([operation._replace(operation_id=engine_id)])


def generator_of(seed: int) -> Generator:
    """Features that streams lack are not drawn: silence starts again with each micro-batch, and rows have no values."""
    generator = Generator(seed)
    generator.swarm.heartbeats = generator.swarm.values = 0.0
    return generator


def with_few_ids(step: Step) -> Step:
    rows: tuple[Any, ...] = tuple(
        row._replace(operation_id=1 + row.operation_id % 2) if isinstance(row, plain.Operation) else row
        for row in step.rows
    )
    return step._replace(rows=rows)


def item_of(item: plain.EndedItem, *, is_fetch: bool) -> tuple[Any, ...]:
    fetched = (
        (item.available_bytes, item.high_watermark, item.last_stable, item.diverging_epoch, item.diverging_end)
        if is_fetch
        else (None,) * 5
    )
    remaining, pace = (None if value < 0 else value for value in (item.remaining_ms, item.pace))
    return (*item.name, item.error, item.required, item.reached, item.log_start, remaining, pace, *fetched)


def outcomes_of(table: pa.Table) -> list[Outcome]:
    return [
        (
            row["caller"],
            row["operation_id"],
            round(row["registered_at"].timestamp() * 1_000),
            row["kind"],
            row["outcome"],
            row["waited_ms"],
            row["refusal"] or tuple(tuple(item.values()) for item in row["items"]),
        )
        for row in table.to_pylist()
    ]


OF_FILES = pa.schema(
    [
        pa.field("at", pa.timestamp("ms", tz="UTC")),
        pa.field("call_number", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("session_id", "kind", "type")),
        *[field for field in ROWS if field.name not in ("at_ms", "place", "caller", "kind", "type")],
    ]
)
"""The archive's columns, as far as a stream reads them."""


def file_row(row: Row) -> dict[str, Any]:
    return row | {
        "at": row["at_ms"],
        "call_number": row.get("place"),
        "session_id": row.get("caller"),
        "kind": KIND_NAMES.get(row.get("kind", 0)),
        "type": EVENT_NAMES.get(row.get("type", 0)),
    }


def listed(folder: Path, *paths: Path) -> pa.RecordBatch:
    """Files of an input as Spark lists them: the columns that `file_packer` expects."""
    rows = [{"path": f"file:{path}", "uri": str(folder), "latest_ms": AT_MS_MAX} for path in paths]
    return pa.RecordBatch.from_pylist(rows)


class StreamFolders:
    """Folders of registrations, events and results. Slices of time are written one after the other."""

    def __init__(self, folder: Path) -> None:
        self.registrations = folder / "registrations"
        self.events = folder / "events"
        self.results = folder / "results"
        self._written = 0
        for inputs in (self.registrations, self.events):
            inputs.mkdir(parents=True)

    def write(self, rows: list[Row]) -> None:
        """One more file on either side, whole or not at all: a micro-batch takes one of each."""
        registrations = [row for row in rows if row.get("kind")]
        others = [row for row in rows if not row.get("kind")]
        for folder, part in ((self.registrations, registrations), (self.events, others)):
            path = folder / f"{self._written:05d}.parquet"
            hidden = path.with_name(f"_{path.name}")
            pq.write_table(pa.Table.from_pylist([file_row(row) for row in part], OF_FILES), hidden)
            os.utime(hidden, (1_700_000_000 + self._written,) * 2)
            hidden.rename(path)
        self._written += 1

    def slices(self, rows: list[Row], count: int) -> list[list[Row]]:
        """Divide rows into `count` slices without writing them; rows of one instant stay together."""
        cuts = [rows[len(rows) * number // count]["at_ms"] for number in range(1, count)]
        parts: list[list[Row]] = [[] for _ in range(count)]
        for row in rows:
            parts[sum(row["at_ms"] >= cut for cut in cuts)].append(row)
        return parts

    def rows(self, table: str) -> pa.Table:
        files = sorted((self.results / table).glob("batch=*/[!_]*.parquet"))
        return pa.concat_tables([pq.ParquetFile(file).read() for file in files]) if files else pa.table({})

    def outcomes(self) -> list[Outcome]:
        found = self.rows("outcomes")
        return outcomes_of(found) if found.num_rows else []
