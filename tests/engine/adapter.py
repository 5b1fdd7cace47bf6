"""The engine behind the plain data of plain.py, so that the same calls can be made on it and on the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.calls import Apply, Call, CancelName, FailStale, PassTime, Pause, Register, ShutDown
from purgatory.engine.completions import FETCHED_COLUMNS, RESULT_ITEM_COLUMNS
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import ITEM, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.wakeups import UNLIMITED
from tests.engine import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.engine.account_usage import AccountUsage
    from purgatory.engine.batches import Receipt
    from purgatory.engine.completions import Completions
    from purgatory.engine.views import PartitionView, PendingView
    from purgatory.engine.waiting.tables import Owner


T = TypeVar("T")

NOTHING_READ: Final = (-1, -1, -1, -1, -1)
OF_ALL_OWNERS: Final = (Apply, CancelName, PassTime, Pause, ShutDown)
"""The calls that the tests make for all owners."""


def unless_all(values: list[T], default: T) -> list[T]:
    """The column, or an empty one if all values are the default: an omitted column is a separate code path."""
    return [] if all(value == default for value in values) else values


FIELDS: Final = {
    "offsets": "offset", "local_error_codes": "local_error", "leader_epochs": "epoch", "min_bytes": "min_bytes",
    "replica_ids": "replica_id", "isolation_levels": "isolation", "follower_reads": "follower_reads",
    "partition_max_bytes": "max_bytes", "last_fetched_epochs": "last_epoch", "throttled": "throttled",
    "any_key": "any_key", "from_now": "from_now", "heartbeat_timeouts_ms": "heartbeat_timeout_ms",
    "stale_timeouts_ms": "stale_timeout_ms", "required_terms": "required_terms", "unless_counts": "unless_count",
}  # fmt: skip
"""The field of a `plain.Operation`, or of its items, for each column of a batch."""


def operation_batch(operations: Sequence[plain.Operation]) -> OperationBatch:
    """Operations of one kind as columns."""
    kind = operations[0].kind
    items = [item for operation in operations for item in operation.items]
    partitions = list(dict.fromkeys([item.name for item in items if item.name[1] >= 0 and kind != plain.SIGNAL]))
    keys = list(dict.fromkeys([item.name for item in items if item.name[1] < 0 or kind == plain.SIGNAL]))
    dictionary = {name: place for place, name in enumerate([*partitions, *keys])}
    columns: dict[str, Any] = {}
    for column in columns_of(kind):
        rows: Sequence[Any] = items if column.level == ITEM else operations
        values = [getattr(row, FIELDS[column.batch_name]) for row in rows]
        columns[column.batch_name] = unless_all(values, column.default)
    return OperationBatch(
        [operation.operation_id for operation in operations],
        partitions=partitions,
        keys=[name[0] for name in keys],
        timeouts_ms=[operation.timeout_ms for operation in operations],
        item_counts=unless_all([len(operation.items) for operation in operations], 1),
        item_indexes=[dictionary[item.name] for item in items],
        **columns,
    )


def value_of(number: int) -> bytes:
    """The value of a key that a number of `plain` stands for."""
    return f"value {number}".encode() if number else b""


def number_of(value: bytes) -> int:
    return int(value.split()[1]) if value else 0


def replica_sets(event: plain.Event) -> ReplicaSets | None:
    if event.type not in {plain.IN_SYNC_REPLICAS, plain.LEADERSHIP}:
        return None
    return ReplicaSets(
        replicas=list(event.replicas),
        in_sync=list(event.in_sync),
        proposed=list(event.proposed),
        leader_id=event.leader_id,
        min_in_sync_replicas=event.min_in_sync,
    )


def registration(operations: Sequence[plain.Operation]) -> Register:
    return Register(operations[0].kind, operation_batch(operations))


def event_batch(events: Sequence[plain.Event]) -> EventBatch:
    partitions: dict[plain.Name, int] = {}
    keys: dict[str, int] = {}
    indexes = []
    for event in events:
        if event.type == plain.KEY_SIGNALLED:
            indexes.append(keys.setdefault(event.name[0], len(keys)))
        else:
            indexes.append(partitions.setdefault(event.name, len(partitions)))
    sets = [replica_sets(event) for event in events]
    return EventBatch(
        [event.type for event in events],
        partitions=list(partitions),
        keys=list(keys),
        item_indexes=indexes,
        offsets=[event.offset for event in events],
        leader_epochs=[event.epoch for event in events],
        replica_ids=[event.replica_id for event in events],
        byte_positions=[event.position for event in events],
        segment_base_offsets=[event.segment for event in events],
        log_start_offsets=[event.log_start for event in events],
        flags=[event.flag for event in events],
        replica_sets=sets if any(given is not None for given in sets) else [],
        values=unless_all([value_of(event.value) for event in events], b""),
    )


def ended_of(completions: Completions) -> list[plain.Ended]:
    """Convert one owner's completions to rows."""
    rows = []
    item = fetched = 0
    columns: list[Any] = [getattr(completions, column.attribute) for column in RESULT_ITEM_COLUMNS]
    for i, operation_id in enumerate(completions.operation_ids):
        items = []
        for _ in range(completions.item_counts[i]):
            read = NOTHING_READ
            if completions.kinds[i] == plain.FETCH:
                read = tuple(getattr(completions.fetched[fetched], column.attribute) for column in FETCHED_COLUMNS)
                fetched += 1
            value = number_of(completions.signal_values.get(item, b""))
            name = completions.item_partitions[item]
            items.append(plain.EndedItem._make((name, *[column[item] for column in columns], *read, value)))
            item += 1
        end = (completions.kinds[i], completions.outcomes[i], completions.waited_ms[i], completions.lateness_ms[i])
        rows.append(plain.Ended(completions.owner_id, operation_id, *end, tuple(items)))
    assert item == len(completions.error_codes), f"{item} items said, {len(completions.error_codes)} given"
    assert fetched == len(completions.fetched), f"{fetched} fetched said, {len(completions.fetched)} given"
    return rows


def marks_of(view: PartitionView) -> plain.PartitionMarks:
    """The marks of a partition: those of the view have the same order."""
    sets = (tuple(sorted(view.in_sync_replica_ids)), tuple(sorted(view.replicas)))
    return plain.PartitionMarks(*view[1:11], *sets, view.unchanged_events, view.stale_events)


def pending_of(view: PendingView) -> plain.Pending:
    items = tuple(item[:4] for item in view.items)
    arms = (view.required_terms, view.unless_count)
    return plain.Pending(view.kind, view.registered_ms, view.deadline_ms, view.min_bytes, items, *arms)


class EngineUnderTest:
    """An engine and its clock. Owners are named by their ids."""

    def __init__(self, settings: plain.Settings = plain.DEFAULTS, limits: EngineLimits | None = None) -> None:
        self.now_ms = settings.now_ms
        self.engine = Engine(
            limits or EngineLimits(timeout_ms_max=settings.timeout_ms_max),
            settings.now_ms,
            tick_ms=settings.tick_ms,
            wheel_size=settings.wheel_size,
            strict_partitions=settings.strict,
            replica_lag_time_max_ms=settings.lag_max_ms,
        )
        self.owners: dict[int, Owner] = {}

    def add_owner(self, usage: AccountUsage | None = None) -> int:
        owner = self.engine.add_owner(usage)
        self.owners[owner.owner_id] = owner
        return owner.owner_id

    def remove_owner(self, owner_id: int) -> None:
        self.engine.remove_owner(self.owners.pop(owner_id), self.now_ms)

    def perform(self, owner_id: int, call: Call, rows: Sequence[Any] = (), work_max: int = UNLIMITED) -> Receipt:
        """Perform a call, a batch of events slice by slice. Only an oracle needs its rows."""
        owner = None if isinstance(call, OF_ALL_OWNERS) else self.owners[owner_id]
        receipt = self.engine.perform(owner, call, self.now_ms, work_max)
        while isinstance(call, Apply) and receipt.next_index < len(call.batch.types):
            more = self.engine.perform(None, Apply(call.batch, receipt.next_index), self.now_ms, work_max)
            receipt.next_index = more.next_index
            receipt.ended += more.ended
            receipt.unchanged += more.unchanged
            receipt.refusals.extend(more.refusals)
            receipt.ended_by_event.extend(more.ended_by_event)
        return receipt

    def fail_stale(self, stale_ms: dict[plain.Name, int]) -> int:
        """End the operations that have waited out their stale timeout for a mark that was stale as long."""
        waits, engine = self.engine.stale_waits, self.engine
        slots = waits.slots()
        assert engine.has_stale_waits == bool(slots)
        known = {name: ms for name, ms in stale_ms.items() if name in waits.names(slots)}
        due = waits.due(slots, known, self.now_ms)
        whose = [(waits.owner_id(slot), waits.operation_id(slot)) for slot in due]
        for owner_id, operation_id in whose:
            call = FailStale([operation_id], set(stale_ms))
            assert engine.perform(self.owners[owner_id], call, self.now_ms).were_pending == [True]
        return len(due)

    def take_ended(self) -> list[plain.Ended]:
        return [row for completions in self.engine.take_completions() for row in ended_of(completions)]

    def marks(self, name: plain.Name) -> plain.PartitionMarks | None:
        view = self.engine.inspection.partition_view(name)
        return None if view is None else marks_of(view)

    def counts(self, kind: int) -> plain.Counts:
        counts = self.engine.inspection.counts(kind)
        return plain.Counts(*[getattr(counts, field) for field in plain.Counts._fields])

    def all_pending(self) -> list[PendingView]:
        found: list[PendingView] = []
        start = 0
        while start >= 0:
            page, start = self.engine.inspection.list_pending(start, 100)
            found += page
        return found
