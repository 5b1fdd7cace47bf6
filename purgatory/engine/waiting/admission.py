"""Admission: validates each operation of a batch, evaluates it once, and admits it only if it has to wait.

An operation that is already satisfied completes immediately and is never watched. This is Kafka's
try_complete_else_watch with a single check: the engine has one owner, so nothing can happen between the check and the
watch. A refused operation changes nothing except `highest_operation_id`; the rest of the batch is processed.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import OperationBatch, Receipt, Refusal
from purgatory.engine.codes import INVALID_ARGUMENT, KINDS, OFFSET_MAX, PENDING
from purgatory.engine.columns import OUT_OF_RANGE
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX, BatchColumns
from purgatory.engine.kinds.kind import Kind
from purgatory.engine.kinds.operation_checks import OperationChecks
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_checks import Fault
from purgatory.engine.marks.registry import NamedPartitions
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner


class Admission:
    """Admits batches of operations."""

    def __init__(self, pending: PendingOperations, limits: EngineLimits) -> None:
        self.pending: Final = pending
        self.limits: Final = limits
        self.checks: Final = OperationChecks(limits, pending.partitions, pending.keys)
        # Capped while they are Python integers: settings have no upper bound, and one above 64 bits would raise here.
        self._pending_max: Final[i64] = min(limits.pending_operations_max, OFFSET_MAX)
        self._items_max: Final[i64] = min(limits.items_per_operation_max, OFFSET_MAX)
        self._pending_items_max: Final[i64] = min(limits.pending_items_max, OFFSET_MAX)
        self._count_stop: i64 = 0
        """Total number of pending operations at which this account has to stop; set by `open_for`."""
        self._items_stop: i64 = 0
        self._named: Final = NamedPartitions(pending.partitions)

    def admit(self, owner: Owner, kind: int, batch: OperationBatch, now_ms: i64, known_up_to: int) -> Receipt:
        """Admit a batch, operation by operation.

        Args:
            owner: The owner of the operations.
            kind: Code of the kind of all operations in the batch.
            batch: The columns of the batch.
            now_ms: Monotonic time, milliseconds.
            known_up_to: Ids up to this one count as repetitions; if negative, the owner's highest id before this batch.

        Raises:
            InvalidBatch: The columns do not fit together. Nothing has been changed.
        """
        if kind not in KINDS:
            raise InvalidBatch("kind", f"{kind} is not known")
        columns = BatchColumns(kind, batch, self.limits, self._named)
        of_kind = self.pending.kinds[kind]
        self.open_for(owner.usage)
        receipt = Receipt()
        # The highest id before this batch, not the highest so far: an id that is repeated within one batch is a fault
        # and not a repetition of an earlier call.
        known_before = owner.highest_operation_id if known_up_to < 0 else known_up_to
        first_item: i64 = 0
        for row in range(i64(columns.rows)):
            item_count = columns.item_counts.at(row)
            # The plain path takes only rows that the full path would accept with the same effect. It words no refusals:
            # each check that fails here is repeated there.
            if columns.is_plain and self.admit_plain(of_kind, owner, columns, row, first_item, item_count, now_ms):
                receipt.accepted += 1
            # The lower bound matters: an id out of range reads as OUT_OF_RANGE, a negative number, and would count as a
            # repetition.
            elif 1 <= columns.operation_ids.at(row) <= known_before:
                receipt.already_known += 1
            else:
                fault = self.admit_row(of_kind, owner, columns, row, first_item, now_ms)
                if fault is None:
                    receipt.accepted += 1
                else:
                    receipt.refusals.append(Refusal(int(row), fault.code, fault.field, fault.message))
            # Also after a refused row: items are numbered over the whole batch.
            first_item += item_count
        receipt.highest_operation_id = owner.highest_operation_id
        return receipt

    def open_for(self, usage: AccountUsage) -> None:
        """Compute the limits for an account. Call before admitting its rows, and again after any other change.

        Once is enough for a run of rows of one account: each row adds the same to the account as to the total, so both
        limits can be expressed as one limit on the total.
        """
        pending = self.pending
        # A stop may be below the present total: an account above its share keeps what it has and gets nothing more.
        self._count_stop = min(self._pending_max, pending.count + usage.operations_max - usage.operations)
        self._items_stop = min(self._pending_items_max, pending.item_count + usage.items_max - usage.items)

    def admit_plain(
        self, kind: Kind, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, item_count: i64, now_ms: i64
    ) -> bool:
        """Admit an operation of a plain batch if the checks here are sufficient.

        Returns:
            False if nothing was changed; pass the operation to `admit_row`.
        """
        operation_id = columns.operation_ids.at(row)
        timeout_ms = columns.timeouts_ms.at(row)
        # A timeout of 0 never waits, and `admit` asserts that the deadline is not due.
        if operation_id <= owner.highest_operation_id or timeout_ms == 0:
            return False
        if item_count > self._items_max or self.pending.count >= self._count_stop:
            return False
        if self.pending.item_count + item_count > self._items_stop:
            return False
        outcome = kind.begin_plain(owner, columns, row, operation_id, timeout_ms, first_item, item_count, now_ms)
        if outcome == UNRESOLVED:
            return False
        # Only now: after a False above, `admit_row` compares the same id with the highest one again, and would refuse
        # it.
        owner.highest_operation_id = operation_id
        if outcome != PENDING:
            self.pending.end_at_once(owner, operation_id, kind.code, outcome, item_count)
        return True

    def admit_row(
        self, kind: Kind, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64
    ) -> Fault | None:
        """Admit one operation, or return why it is refused. A refused operation uses up its id."""
        operation_id = columns.operation_ids.at(row)
        # An id outside the range is refused without being used up: stored as the highest one it would block all others.
        if operation_id == OUT_OF_RANGE:
            message = f"{columns.operation_ids.given(row)} is not in 1..{OPERATION_ID_MAX}"
            return Fault(INVALID_ARGUMENT, "operation_id", message)
        if operation_id <= owner.highest_operation_id:
            message = f"{operation_id} does not rise; the id before it was {owner.highest_operation_id}"
            return Fault(INVALID_ARGUMENT, "operation_id", message)
        # Before the checks: a client that repeats the batch must not get a refused id accepted the second time.
        owner.highest_operation_id = operation_id
        fault = self.checks.fault(columns, row, first_item, owner.usage, self.pending.count, self.pending.item_count)
        if fault is None:
            outcome = kind.begin(owner, columns, row, first_item, now_ms)
            if outcome != PENDING:
                self.pending.end_at_once(owner, operation_id, kind.code, outcome, columns.item_counts.at(row))
            if columns.has_stale_timeouts:
                self._note_stale_timeout(owner, operation_id, columns.stale_timeouts_ms.at(row), now_ms)
        return fault

    def _note_stale_timeout(self, owner: Owner, operation_id: i64, stale_timeout_ms: i64, now_ms: i64) -> None:
        """Store the stale timeout if the operation is still pending; it may have ended during its registration."""
        if stale_timeout_ms >= 0:
            slot = owner.find(operation_id, self.pending.operations)
            if slot >= 0:
                self.pending.limit_staleness(slot, stale_timeout_ms, now_ms)
