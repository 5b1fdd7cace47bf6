"""The engine behind the plain data of plain.py, so that the same calls can be made on it and on the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.calls import Apply, Call, CancelName, FailStale, PassTime, Pause, Register, ShutDown
from purgatory.engine.completions import FETCHED_COLUMNS, RESULT_ITEM_COLUMNS
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from tests.engine import plain

if TYPE_CHECKING:
    from purgatory.engine.batches import Receipt, Refusal
    from purgatory.engine.completions import Completions
    from purgatory.engine.views import PartitionView, PendingView
    from purgatory.engine.waiting.tables import Owner


T = TypeVar("T")

NOTHING_READ: tuple[int, ...] = (-1, -1, -1, -1, -1)


def unless_all(values: list[T], default: T) -> list[T]:
    """The column, or an empty one if all values are the default: an omitted column is a separate code path."""
    return [] if all(value == default for value in values) else values


def operation_batch(operations: list[plain.Operation]) -> OperationBatch:
    """Operations of one kind as columns."""
    kind = operations[0].kind
    signals = kind == plain.SIGNAL
    fetches = kind == plain.FETCH
    composites = kind == plain.COMPOSITE
    items = [item for operation in operations for item in operation.items]
    partitions = list(dict.fromkeys([item.name for item in items if item.name[1] >= 0 and not signals]))
    keys = list(dict.fromkeys([item.name for item in items if item.name[1] < 0 or signals]))
    dictionary = {name: place for place, name in enumerate([*partitions, *keys])}
    indexes = [dictionary[item.name] for item in items]
    return OperationBatch(
        [operation.operation_id for operation in operations],
        partitions=partitions,
        keys=[name[0] for name in keys],
        timeouts_ms=[operation.timeout_ms for operation in operations],
        item_counts=unless_all([len(operation.items) for operation in operations], 1),
        item_indexes=indexes,
        offsets=[item.offset for item in items],
        local_error_codes=unless_all([item.local_error for item in items], 0),
        leader_epochs=unless_all([item.epoch for item in items], -1),
        min_bytes=[operation.min_bytes for operation in operations] if fetches else [],
        replica_ids=[operation.replica_id for operation in operations] if fetches else [],
        isolation_levels=[operation.isolation for operation in operations] if fetches else [],
        follower_reads=[operation.follower_reads for operation in operations] if fetches else [],
        partition_max_bytes=[item.max_bytes for item in items] if fetches else [],
        last_fetched_epochs=[item.last_epoch for item in items] if fetches else [],
        throttled=[item.throttled for item in items] if fetches else [],
        any_key=[operation.any_key for operation in operations] if signals else [],
        from_now=[operation.from_now for operation in operations] if signals else [],
        stale_timeouts_ms=unless_all([operation.stale_timeout_ms for operation in operations], -1),
        heartbeat_timeouts_ms=unless_all([operation.heartbeat_timeout_ms for operation in operations], -1),
        required_terms=[operation.required_terms for operation in operations] if composites else [],
        unless_counts=unless_all([operation.unless_count for operation in operations], 0),
    )


def value_of(number: int) -> bytes:
    """The value of a key that a number of `plain` stands for."""
    return f"value {number}".encode() if number else b""


def number_of(value: bytes) -> int:
    return int(value.split()[1]) if value else 0


def replica_sets(event: plain.Event) -> ReplicaSets | None:
    """The lists of an event that has lists."""
    if event.type not in {plain.IN_SYNC_REPLICAS, plain.LEADERSHIP}:
        return None
    return ReplicaSets(
        replicas=list(event.replicas),
        in_sync=list(event.in_sync),
        proposed=list(event.proposed),
        leader_id=event.leader_id,
        min_in_sync_replicas=event.min_in_sync,
    )


def event_batch(events: list[plain.Event]) -> EventBatch:
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
    """An engine with an interface of plain data, and its clock."""

    def __init__(self, settings: plain.Settings = plain.DEFAULTS) -> None:
        self.now_ms = settings.now_ms
        self.engine = Engine(
            EngineLimits(timeout_ms_max=settings.timeout_ms_max),
            settings.now_ms,
            tick_ms=settings.tick_ms,
            wheel_size=settings.wheel_size,
            strict_partitions=settings.strict,
            replica_lag_time_max_ms=settings.lag_max_ms,
        )
        self.owners: dict[int, Owner] = {}
        self.last_refusals: list[Refusal] = []
        """Of the last batch of operations or slice of events."""

    def add_owner(self) -> int:
        owner = self.engine.add_owner()
        self.owners[owner.owner_id] = owner
        return owner.owner_id

    def remove_owner(self, owner_id: int) -> None:
        self.engine.remove_owner(self.owners.pop(owner_id), self.now_ms)

    def register(self, owner_id: int, operations: list[plain.Operation]) -> Receipt:
        """Register a batch of one kind."""
        call = Register(operations[0].kind, operation_batch(operations))
        receipt = self.engine.perform(self.owners[owner_id], call, self.now_ms)
        self.last_refusals = receipt.refusals
        return receipt

    def apply(self, events: list[plain.Event], limit: int = 100_000) -> list[plain.EventAnswer]:
        """Apply a batch, slice by slice."""
        batch = event_batch(events)
        answers: list[plain.EventAnswer] = []
        while len(answers) < len(events):
            receipt = self.engine.perform(None, Apply(batch, len(answers)), self.now_ms, limit)
            self.last_refusals = receipt.refusals
            answers += answers_of(receipt, len(answers))
        return answers

    def perform(self, owner_id: int, call: Call) -> Receipt:
        """Perform a call without rows. Calls on a name, and pauses, are for all owners."""
        owner = None if isinstance(call, CancelName | Pause) else self.owners[owner_id]
        return self.engine.perform(owner, call, self.now_ms)

    def fail_stale(self, stale_ms: dict[plain.Name, int]) -> int:
        """End the operations that have waited out their stale timeout for a mark that was stale as long."""
        waits, engine = self.engine.stale_waits, self.engine
        slots = waits.slots()
        assert engine.has_stale_waits == bool(slots)
        known = {name: ms for name, ms in stale_ms.items() if name in waits.names(slots)}
        due = waits.due(slots, known, self.now_ms)
        whose = [(waits.owner_id(slot), waits.operation_id(slot)) for slot in due]
        for owner_id, operation_id in whose:
            assert engine.perform(
                self.owners[owner_id], FailStale([operation_id], set(stale_ms)), self.now_ms
            ).were_pending == [True]
        return len(due)

    def advance(self, ms: int, limit: int = 100_000) -> int:
        """Advance the time, with one call of `PassTime`."""
        self.now_ms += ms
        return self.engine.perform(None, PassTime(limit), self.now_ms).ended

    def shut_down(self, limit: int) -> int:
        return self.engine.perform(None, ShutDown(limit), self.now_ms).ended

    def take_ended(self) -> list[plain.Ended]:
        return [row for completions in self.engine.take_completions() for row in ended_of(completions)]

    def marks(self, name: plain.Name) -> plain.PartitionMarks | None:
        view = self.engine.inspection.partition_view(name)
        return None if view is None else marks_of(view)

    def counts(self, kind: int) -> plain.Counts:
        counts = self.engine.inspection.counts(kind)
        return plain.Counts(*[getattr(counts, field) for field in plain.Counts._fields])

    def all_pending(self) -> list[PendingView]:
        """Every pending operation, page by page."""
        found: list[PendingView] = []
        start = 0
        while start >= 0:
            page, start = self.engine.inspection.list_pending(start, 100)
            found += page
        return found


def answers_of(receipt: Receipt, start: int) -> list[plain.EventAnswer]:
    """One answer per event of a slice. The receipt only has the sum of `unchanged`; it is set on the last answer."""
    refused = {refusal.index: (refusal.code, refusal.error_code) for refusal in receipt.refusals}
    answers = []
    for i, ended in enumerate(receipt.ended_by_event):
        answers.append(plain.EventAnswer(ended, False, refused.get(start + i)))
    assert receipt.next_index == start + len(answers), f"{receipt.next_index} after {start} + {len(answers)}"
    if len(answers) == 1:
        return [answers[0]._replace(unchanged=receipt.unchanged == 1)]
    return answers
