"""The expected end of every operation, computed by replaying the tap's record of engine calls on the oracle.

The oracle (tests/engine/oracle) consists of lists and loops, was written from docs/semantics.md alone, and shares no
code with the engine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Cancel, CancelAll, CancelName, PassTime, Pause, Register, ShutDown
from tests.engine import plain
from tests.engine.oracle.purgatory import Oracle
from tests.histories.day.engine_tap import EngineCall
from tests.histories.day.plan import TIMEOUT_MS_DEFAULT


@dataclass(frozen=True)
class ExpectedEnd:
    """The expected end of an operation. `session_id` is None for unary waits."""

    session_id: str | None
    ended: plain.Ended
    ended_ms: int
    told: bool
    """False: it ended together with its session, so no result is sent."""

    @property
    def registered_ms(self) -> int:
        return self.ended_ms - self.ended.waited_ms

    @property
    def names(self) -> tuple[plain.Name, ...]:
        return tuple(item.name for item in self.ended.items)

    @property
    def codes(self) -> tuple[int, ...]:
        return tuple(item.error for item in self.ended.items)


@dataclass
class Run:
    """The expected results of one daemon's life."""

    ends: list[ExpectedEnd] = field(default_factory=list)
    counts: dict[int, plain.Counts] = field(default_factory=dict)
    """Counts by kind."""
    signals: dict[str, Counter[int]] = field(default_factory=dict)
    """Number of signals by key and count."""


def run_of(calls: Sequence[EngineCall], session_ids: dict[int, str]) -> Run:
    """Replay a daemon's life. `session_ids` contains the sessions of its owners; the owner of unary waits has none."""
    oracle, run = Oracle(), Run()
    for call in calls:
        if call.call == "add_owner":
            oracle.add_owner(call.owner)
            continue
        replay(oracle, call, run)
        told = call.call != "remove_owner"
        run.ends += [
            ExpectedEnd(session_ids.get(ended.owner_id), ended, call.now_ms, told) for ended in oracle.take_ended()
        ]
        if not told:
            oracle.remove_owner(call.owner, call.now_ms)
    run.counts = {kind: oracle.counts(kind) for kind in plain.KINDS}
    return run


def replay(oracle: Oracle, entry: EngineCall, run: Run) -> None:
    """Make one of the engine's calls on the oracle, and count signals."""
    owner, now_ms = entry.owner, entry.now_ms
    match entry.call:
        case Register(kind=kind, batch=batch):
            oracle.register(owner, operations_of(kind, batch), now_ms)
        case Apply(batch=batch, start=start):
            for event in events_of(batch, start, entry.stop):
                oracle.apply(event, now_ms)
                if event.type == plain.KEY_SIGNALLED:
                    run.signals.setdefault(event.name[0], Counter())[event.offset] += 1
        case PassTime(limit=limit):
            due = list(oracle.due(now_ms))
            assert len(due) <= limit, "more due than one slice: nothing here cuts slices"
            oracle.finish(due, plain.EXPIRED, now_ms)
        case ShutDown(limit=limit):
            assert len(oracle.pending) <= limit, "more pending than one slice: nothing here cuts slices"
            oracle.finish(list(oracle.pending), plain.SHUTTING_DOWN, now_ms)
        case Cancel(operation_ids=ids):
            oracle.cancel(owner, ids[: entry.stop], now_ms)
        case CancelName(name=name):
            oracle.cancel_name(name, now_ms)
        case CancelAll() | "remove_owner":
            oracle.cancel_all(owner, now_ms)
        case call:
            assert isinstance(call, Pause), f"no day makes the call {call}"


def value_at(column: Sequence[int], place: int, default: int) -> int:
    """The value of a column at a position: a column has a value for each, one for all, or none for the default."""
    return column[place if len(column) > 1 else 0] if column else default


def operations_of(kind: int, batch: OperationBatch) -> list[plain.Operation]:
    """Convert a batch of columns to rows, with the fields that plans use."""
    partitions: list[plain.Name] = [] if kind == plain.SIGNAL else list(batch.partitions)
    names = [*partitions, *((key, -1) for key in batch.keys)]
    operations = []
    place = 0
    for row, operation_id in enumerate(batch.operation_ids):
        items = []
        for _ in range(value_at(batch.item_counts, row, 1)):
            name = names[value_at(batch.item_indexes, place, 0)]
            offset = value_at(batch.offsets, place, int(kind == plain.SIGNAL))
            items.append(plain.Item(name, offset, local_error=value_at(batch.local_error_codes, place, 0)))
            place += 1
        operations.append(
            plain.Operation(
                kind,
                operation_id,
                value_at(batch.timeouts_ms, row, TIMEOUT_MS_DEFAULT),
                tuple(items),
                min_bytes=value_at(batch.min_bytes, row, 1),
                replica_id=value_at(batch.replica_ids, row, -1),
                any_key=bool(value_at(batch.any_key, row, 0)),
                from_now=bool(value_at(batch.from_now, row, 0)),
                required_terms=value_at(batch.required_terms, row, 0),
                unless_count=value_at(batch.unless_counts, row, 0),
            )
        )
    return operations


def events_of(batch: EventBatch, start: int, stop: int) -> list[plain.Event]:
    """Convert the events of a slice to rows, with the fields that plans use."""
    events = []
    for place in range(start, stop):
        event_type, index = batch.types[place], value_at(batch.item_indexes, place, 0)
        name = (batch.keys[index], -1) if event_type == plain.KEY_SIGNALLED else batch.partitions[index]
        offset = value_at(batch.offsets, place, 1)
        epoch = value_at(batch.leader_epochs, place, -1)
        events.append(plain.Event(event_type, name, offset, epoch, flag=value_at(batch.flags, place, 0)))
    return events
