"""A random history of calls, as a single engine lives it call by call, and as rows for a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from purgatory_pipeline.stream.shard import LIMITS

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory.engine.engine import Engine
from tests.engine import plain
from tests.engine.adapter import ended_of, event_batch, operation_batch
from tests.histories.plan import Generator, Step

START_MS = 1_700_000_000_000
Row = dict[str, Any]
Outcome = tuple[Any, ...]
"""Caller, id, registered when, kind, outcome, waited, and its items; a refused one has its reason for items."""


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
        """Time passes."""
        while 0 <= self._engine.next_expiration_ms() <= now_ms:
            self.now_ms = max(self.now_ms, self._engine.next_expiration_ms())
            self._engine.perform(None, PassTime(1_000_000), self.now_ms)
            self._collect()
        self.now_ms = now_ms

    def end_all(self) -> None:
        """Time passes until nothing waits."""
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
        """Events."""
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
        self._place = 0
        self._direct = DirectEngine()
        for step in sequence:
            self._take(step)
        self._direct.end_all()
        self.end_ms = self._direct.now_ms + 1
        """When all has ended that can."""

    @staticmethod
    def of_seed(seed: int, step_count: int) -> SimulatedHistory:
        """The history that the history machine draws from a seed."""
        generator = Generator(seed)
        generator.swarm.heartbeats = 0.0  # in a stream, silence starts again with each micro-batch
        return SimulatedHistory(generator.steps(step_count))

    @property
    def outcomes(self) -> list[Outcome]:
        return self._direct.outcomes

    @property
    def refused_events(self) -> int:
        return self._direct.refused_events

    def _take(self, step: Step) -> None:
        """A stream has no calls but registrations and events."""
        if step.pass_ms or isinstance(step.call, PassTime):
            self._direct.pass_time(self._direct.now_ms + step.pass_ms)
        for row in step.rows:
            if isinstance(row, plain.Operation) and row.items:
                self._register(f"caller {step.owner}", row)
            elif isinstance(row, plain.Event):
                self.rows.append(self._event_row(row))
                self._direct.apply(event_batch([row]))

    def _register(self, caller: str, operation: plain.Operation) -> None:
        self.rows += self._operation_rows(caller, operation)
        self._direct.register(
            caller,
            operation.operation_id,
            operation.kind,
            lambda number: operation_batch([operation._replace(operation_id=number)]),
        )

    def _stamp(self) -> Row:
        self._place += 1
        return {"at_ms": self._direct.now_ms, "place": self._place}

    def _operation_rows(self, caller: str, operation: plain.Operation) -> list[Row]:
        shared = self._stamp() | {
            "kind": operation.kind, "caller": caller, "operation_id": operation.operation_id,
            "timeout_ms": operation.timeout_ms, "item_count": len(operation.items),
            "stale_timeout_ms": given(operation.stale_timeout_ms, -1),
        }  # fmt: skip
        if operation.kind == plain.FETCH:
            shared |= {
                "min_bytes": operation.min_bytes, "replica_id": given(operation.replica_id, -1),
                "isolation_level": operation.isolation, "follower_reads": operation.follower_reads,
            }  # fmt: skip
        if operation.kind == plain.SIGNAL:
            shared |= {"any_key": operation.any_key, "from_now": operation.from_now}
        if operation.kind == plain.COMPOSITE:
            shared |= {"required_terms": operation.required_terms, "unless_count": operation.unless_count}
        return [
            shared
            | {"item": place}
            | named(item.name)
            | {
                "offset": item.offset,
                "local_error_code": item.local_error,
                "leader_epoch": given(item.epoch, -1),
                "partition_max_bytes": item.max_bytes,
                "last_fetched_epoch": given(item.last_epoch, -1),
                "throttled": item.throttled,
            }
            for place, item in enumerate(operation.items)
        ]

    def _event_row(self, event: plain.Event) -> Row:
        row = self._stamp() | {"type": event.type} | named(event.name) | {
            "offset": given(event.offset, -1), "leader_epoch": given(event.epoch, -1),
            "replica_id": given(event.replica_id, -1), "byte_position": given(event.position, -1),
            "segment_base_offset": given(event.segment, -1), "log_start_offset": given(event.log_start, -1),
            "flags": event.flag,
        }  # fmt: skip
        if event.type in (plain.IN_SYNC_REPLICAS, plain.LEADERSHIP):
            row |= {
                "replicas": list(event.replicas), "in_sync": list(event.in_sync), "proposed": list(event.proposed),
                "leader_id": given(event.leader_id, -1), "min_in_sync_replicas": given(event.min_in_sync, -1),
            }  # fmt: skip
        return row


def given(value: int, default: int) -> int | None:
    """The value, or None if it is the default."""
    return None if value == default else value


def named(name: plain.Name) -> Row:
    return {"topic": name[0], "partition": None if name[1] == -1 else name[1]}


def item_of(item: plain.EndedItem, *, is_fetch: bool) -> tuple[Any, ...]:
    fetched = (
        (item.available_bytes, item.high_watermark, item.last_stable, item.diverging_epoch, item.diverging_end)
        if is_fetch
        else (None,) * 5
    )
    remaining, pace = given(item.remaining_ms, -1), None if item.pace < 0 else item.pace
    return (*item.name, item.error, item.required, item.reached, item.log_start, remaining, pace, *fetched)


def outcomes_of(table: pa.Table) -> list[Outcome]:
    """Outcomes of a stream, as a history has them."""
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
