"""Registration: each operation of a batch is checked, tried once, and admitted only if it has to wait.

Already satisfied means no registration (Kafka's try_complete_else_watch with one check: between the try and the watch
nothing else can happen here). What is refused changes nothing; the rest of the batch is served.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, OperationBatch, Refusal, RegisterReceipt
from purgatory.engine.codes import (
    DELETE_RECORDS,
    EXPIRED,
    FAILED,
    FETCH,
    INVALID_ARGUMENT,
    KINDS,
    NONE,
    OFFSET_MAX,
    OFFSET_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    PRODUCE,
    REQUEST_TIMED_OUT,
    SATISFIED,
    SIGNAL,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from purgatory.engine.columns import OUT_OF_RANGE
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX, BatchColumns
from purgatory.engine.kinds.fetch import Fetch, FetchItem, examine
from purgatory.engine.kinds.operation_checks import OperationChecks
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_checks import Fault
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import NamedPartitions, Partitions, SignalKey, SignalKeys
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner
from purgatory.engine.waiting.wakeups import Wakeups, delete_records_state, partition_fault, produce_state
from purgatory.engine.waiting.watches import WatchList

__all__ = ["Registration"]


class Registration:
    """Takes batches of operations in."""

    def __init__(
        self,
        partitions: Partitions,
        keys: SignalKeys,
        pending: PendingOperations,
        wakeups: Wakeups,
        limits: EngineLimits,
        strict_partitions: bool,
    ) -> None:
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.pending: Final = pending
        self.wakeups: Final = wakeups
        self.limits: Final = limits
        self.strict_partitions: Final = strict_partitions
        self.pending_max: Final[i64] = min(limits.pending_operations_max, OFFSET_MAX)
        self.checks: Final = OperationChecks(limits, partitions, keys, not strict_partitions)
        self.items_max: Final[i64] = min(limits.items_per_operation_max, OFFSET_MAX)
        self._named: Final = NamedPartitions(partitions)
        self._rows_looked_at: i64 = 0
        """Numbers the rows that `take_plain` looks at, so that a partition that is named twice is found."""

    def register(self, owner: Owner, kind: int, batch: OperationBatch, now_ms: i64) -> RegisterReceipt:
        """Serves a batch, operation by operation. Raises InvalidBatch before anything is done."""
        if kind not in KINDS:
            raise InvalidBatch("kind", f"{kind} is not known")
        columns = BatchColumns(kind, batch, self.limits, self._named)
        receipt = RegisterReceipt()
        known_before = int(owner.highest_operation_id)
        first_item = 0
        for row in range(columns.rows):
            if columns.is_plain and self.take_plain(owner, columns, row, first_item, now_ms):
                receipt.accepted += 1
                first_item += columns.item_counts.at(row)
                continue
            operation_id = columns.operation_ids.at(row)
            if 1 <= operation_id <= known_before:
                receipt.already_known += 1
            else:
                fault = self._fault(owner, columns, row, first_item)
                if operation_id > owner.highest_operation_id:
                    owner.highest_operation_id = operation_id
                if fault is None:
                    receipt.accepted += 1
                    self.take(owner, columns, row, first_item, now_ms)
                else:
                    receipt.refusals.append(Refusal(row, fault.code, fault.field, fault.message))
            first_item += columns.item_counts.at(row)
        receipt.highest_operation_id = owner.highest_operation_id
        return receipt

    def _fault(self, owner: Owner, columns: BatchColumns, row: int, first_item: int) -> Fault | None:
        operation_id = columns.operation_ids.at(row)
        if operation_id == OUT_OF_RANGE:
            message = f"{columns.operation_ids.given(row)} is not in 1..{OPERATION_ID_MAX}"
            return Fault(INVALID_ARGUMENT, "operation_id", message)
        if operation_id <= owner.highest_operation_id:
            return Fault(
                INVALID_ARGUMENT,
                "operation_id",
                f"{operation_id} does not rise; the id before it was {owner.highest_operation_id}",
            )
        return self.checks.fault(columns, row, first_item, self.pending.count)

    def take(self, owner: Owner, columns: BatchColumns, row: int, first_item: int, now_ms: i64) -> None:
        """Tries one operation, which was checked, and lets it wait if it has to."""
        kind = columns.kind
        if kind == PRODUCE:
            self._take_produce(owner, columns, row, first_item, now_ms)
        elif kind == FETCH:
            self._take_fetch(owner, columns, row, first_item, now_ms)
        elif kind == DELETE_RECORDS:
            self._take_delete_records(owner, columns, row, first_item, now_ms)
        else:
            self._take_signal(owner, columns, row, first_item, now_ms)

    def _partition(self, name: AsGiven) -> Partition:
        """The partition of that name, held for one item; made on first mention, or a stand-in that answers 3 when
        strict.
        """
        partition = self.partitions.get(name)
        if partition is None:
            if self.strict_partitions:
                partition = self.partitions.make_missing(name, UNKNOWN_TOPIC_OR_PARTITION)
            else:
                partition = self.partitions.make(name)
        self.partitions.hold(partition)
        return partition

    def _take_produce(self, owner: Owner, columns: BatchColumns, row: int, first_item: int, now_ms: i64) -> None:
        draft = Draft()
        for item in range(first_item, first_item + columns.item_counts.at(row)):
            partition = self._partition(columns.partitions[columns.places.at(item)])
            required = columns.offsets.at(item)
            epoch = columns.leader_epochs.at(item)
            error: i64 = columns.local_error_codes.at(item)
            if error == NONE:
                error = produce_state(partition, required, epoch)
            draft.add(partition, required, partition.high_watermark, epoch, error)
        self._admit(owner, columns, row, draft, now_ms)

    def take_plain(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> bool:
        """Takes in a row of a plain batch that has to wait and needs no other check. False: nothing was done.

        The items are walked twice, first to see whether that is so and then to enter them, because a draft would make
        six objects for each operation.
        """
        operation_id = columns.operation_ids.at(row)
        timeout_ms = columns.timeouts_ms.at(row)
        if timeout_ms == 0 or operation_id <= owner.highest_operation_id or self.pending.count >= self.pending_max:
            return False
        end = first_item + columns.item_counts.at(row)
        left = self._items_to_wait_for(columns, first_item, end)
        if left <= 0:
            return False
        pending = self.pending
        slot = pending.admit(owner, PRODUCE, left, operation_id, timeout_ms, now_ms)
        last: i64 = -1
        item = first_item
        while item < end:
            partition = columns.known_partition(item)
            assert partition is not None, f"the partition of item {item} was known a moment ago"
            required, epoch = columns.offsets.at(item), columns.leader_epochs.at(item)
            error = produce_state(partition, required, epoch)
            self.partitions.hold(partition)
            last = pending.add_item(slot, last, partition.index, required, partition.high_watermark, epoch, error)
            if error == UNRESOLVED:
                pending.watch(produces_of(partition), PRODUCE, last, required)
            item += 1
        owner.highest_operation_id = operation_id
        return True

    def _items_to_wait_for(self, columns: BatchColumns, first_item: i64, end: i64) -> i64:
        """How many items of a plain row have to wait; -1 when they need another check: too many, a partition that is
        not known, or one that is named twice.
        """
        if end - first_item > self.items_max:
            return -1
        self._rows_looked_at += 1
        left: i64 = 0
        item = first_item
        while item < end:
            partition = columns.known_partition(item)
            if partition is None or partition.named_by_row == self._rows_looked_at:
                return -1
            partition.named_by_row = self._rows_looked_at
            if produce_state(partition, columns.offsets.at(item), columns.leader_epochs.at(item)) == UNRESOLVED:
                left += 1
            item += 1
        return left

    def _take_delete_records(self, owner: Owner, columns: BatchColumns, row: int, first_item: int, now_ms: i64) -> None:
        count = columns.item_counts.at(row)
        draft = Draft()
        for item in range(first_item, first_item + count):
            partition = self._partition(columns.partitions[columns.places.at(item)])
            offset: i64 = columns.offsets.at(item)
            error: i64 = columns.local_error_codes.at(item)
            if error == NONE:
                error = partition_fault(partition, -1)
            if error == NONE and offset < 0:
                offset = partition.high_watermark
                error = OFFSET_NOT_AVAILABLE if offset < 0 else NONE
            if error == NONE and 0 <= partition.high_watermark < offset:
                error = OFFSET_OUT_OF_RANGE
            if error == NONE:
                error = delete_records_state(partition, offset)
            mark = partition.low_watermark() if error in (NONE, UNRESOLVED) else -1
            draft.add(partition, offset, mark, -1, error)
        self._admit(owner, columns, row, draft, now_ms)

    def _admit(self, owner: Owner, columns: BatchColumns, row: int, draft: Draft, now_ms: i64) -> None:
        """A produce or delete-records whose items have been tried: completes it, or lets it wait for the unresolved
        ones. With a timeout of 0 these time out at once, and nothing is left pending.
        """
        kind = columns.kind
        if draft.left == 0 or columns.timeouts_ms.at(row) == 0:
            self._complete_at_once(owner, columns, row, draft)
            return
        pending = self.pending
        slot = pending.admit(
            owner, kind, draft.left, columns.operation_ids.at(row), columns.timeouts_ms.at(row), now_ms
        )
        item: i64 = -1
        for place, partition in enumerate(draft.partitions):
            error = draft.errors[place]
            required = draft.required[place]
            item = pending.add_item(
                slot, item, partition.index, required, draft.marks[place], draft.epochs[place], error
            )
            if error == UNRESOLVED:
                pending.watch(
                    produces_of(partition) if kind == PRODUCE else deletes_of(partition), kind, item, required
                )

    def _complete_at_once(self, owner: Owner, columns: BatchColumns, row: int, draft: Draft) -> None:
        completions = self.pending.completions_of(owner)
        outcome = EXPIRED if draft.left > 0 else SATISFIED
        for place, partition in enumerate(draft.partitions):
            error = draft.errors[place]
            if error == UNRESOLVED:
                error = REQUEST_TIMED_OUT
            elif error != NONE and outcome == SATISFIED:
                outcome = FAILED
            completions.add_item(
                partition.name, error, draft.required[place], draft.marks[place], partition.log_start_offset, -1, -1.0
            )
            self.partitions.release(partition)
        self._note(owner, columns, row, outcome)

    def _note(self, owner: Owner, columns: BatchColumns, row: int, outcome: i64) -> None:
        """Writes down the end of an operation that never had to wait, after its items."""
        completions = self.pending.completions_of(owner)
        completions.add_operation(
            columns.operation_ids.at(row), columns.kind, outcome, 0, 0, columns.item_counts.at(row)
        )
        self.pending.note_end(columns.kind, outcome)

    def _take_fetch(self, owner: Owner, columns: BatchColumns, row: int, first_item: int, now_ms: i64) -> None:
        fetch = Fetch(
            columns.column("min_bytes").at(row),
            columns.column("replica_id").at(row),
            columns.column("isolation_level").at(row),
            columns.column("follower_reads").at(row) != 0,
        )
        max_bytes = columns.column("partition_max_bytes")
        last_epochs = columns.column("last_fetched_epoch")
        throttled = columns.column("throttled")
        for item in range(first_item, first_item + columns.item_counts.at(row)):
            fetch.items.append(
                FetchItem(
                    self._partition(columns.partitions[columns.places.at(item)]),
                    columns.offsets.at(item),
                    max_bytes.at(item),
                    columns.leader_epochs.at(item),
                    last_epochs.at(item),
                    throttled.at(item) != 0,
                )
            )
        pending = self.pending
        pending.evaluations_by_kind[FETCH] += 1
        may_answer = examine(fetch)
        if may_answer or columns.timeouts_ms.at(row) == 0:
            failed = pending.answer_fetch(fetch, pending.completions_of(owner))
            for part in fetch.items:
                self.partitions.release(part.partition)
            self._note(owner, columns, row, EXPIRED if not may_answer else FAILED if failed else SATISFIED)
            return
        slot = pending.admit(owner, FETCH, 0, columns.operation_ids.at(row), columns.timeouts_ms.at(row), now_ms)
        last: i64 = -1
        for part in fetch.items:
            last = pending.add_item(slot, last, part.partition.index, part.fetch_offset, -1, -1, UNRESOLVED)
            part.item = last
            if part.throttled:
                part.partition.throttled_fetches += 1
        pending.fetches[int(slot)] = fetch
        self.wakeups.watch_fetch(fetch)

    def _take_signal(self, owner: Owner, columns: BatchColumns, row: int, first_item: int, now_ms: i64) -> None:
        held = self._hold_keys(columns, row, first_item)
        from_now = columns.column("from_now").at(row) != 0
        any_key = columns.column("any_key").at(row) != 0
        required: list[i64] = []
        left = 0
        for place, key in enumerate(held):
            wanted: i64 = columns.offsets.at(first_item + place)
            if from_now:
                wanted += key.count
            required.append(wanted)
            if key.count < wanted:
                left += 1
        satisfied = left == 0 or (any_key and left < len(held))
        if satisfied or columns.timeouts_ms.at(row) == 0:
            completions = self.pending.completions_of(owner)
            for place, key in enumerate(held):
                error = NONE if key.count >= required[place] else REQUEST_TIMED_OUT
                completions.add_item(key.name, error, required[place], key.count, -1, -1, -1.0)
                self.keys.release(key)
            self._note(owner, columns, row, SATISFIED if satisfied else EXPIRED)
            return
        pending = self.pending
        if any_key:
            left = 1
        slot = pending.admit(owner, SIGNAL, left, columns.operation_ids.at(row), columns.timeouts_ms.at(row), now_ms)
        item: i64 = -1
        for place, key in enumerate(held):
            error_code: i64 = NONE if key.count >= required[place] else UNRESOLVED
            item = pending.add_item(slot, item, key.index, required[place], key.count, -1, error_code)
            if error_code == UNRESOLVED:
                pending.watch(key.waits, SIGNAL, item, required[place])

    def _hold_keys(self, columns: BatchColumns, row: int, first_item: int) -> list[SignalKey]:
        """The keys of an operation, each held. Known ones first, so that none is forgotten to make room for a new
        one.
        """
        names = [
            columns.keys[columns.places.at(item)]
            for item in range(first_item, first_item + columns.item_counts.at(row))
        ]
        for name in names:
            key = self.keys.get(name)
            if key is not None:
                self.keys.hold(key)
        held: list[SignalKey] = []
        for name in names:
            key = self.keys.get(name)
            if key is None:
                key = self.keys.make(name)
                self.keys.hold(key)
            held.append(key)
        return held


class Draft:
    """The items of a produce or delete-records that has been tried once."""

    def __init__(self) -> None:
        self.partitions: Final[list[Partition]] = []
        self.required: Final[list[i64]] = []
        self.marks: Final[list[i64]] = []
        self.epochs: Final[list[i64]] = []
        self.errors: Final[list[i64]] = []
        self.left: i64 = 0

    def add(self, partition: Partition, required: i64, mark: i64, epoch: i64, error: i64) -> None:
        """One item; UNRESOLVED ones are left to wait for."""
        self.partitions.append(partition)
        self.required.append(required)
        self.marks.append(mark)
        self.epochs.append(epoch)
        self.errors.append(error)
        if error == UNRESOLVED:
            self.left += 1


def produces_of(partition: Partition) -> WatchList:
    """The partition's produce waits, by required offset."""
    if partition.produces is None:
        partition.produces = WatchList()
    return partition.produces


def deletes_of(partition: Partition) -> WatchList:
    """The partition's delete-records waits, by offset."""
    if partition.deletes is None:
        partition.deletes = WatchList()
    return partition.deletes
