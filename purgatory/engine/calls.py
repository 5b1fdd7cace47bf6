"""The calls that change an engine, as data. `Engine.perform` takes one and returns a `Receipt`.

Everything that makes, records or repeats a call uses these classes. They are immutable: do not modify a batch or a list
of ids after passing it. A call that stops at its `work_max`, or at a limit of its own, says so in `Receipt.has_more`.
"""

from typing import Final

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX


class Call:
    """A call of `Engine.perform`."""


class Register(Call):
    """Register a batch of operations of one kind, item by item.

    An operation is accepted (it may already have ended), already known (its id is not above `known_up_to`; -1: the
    highest id before this batch), or refused with a reason.
    """

    def __init__(self, kind: int, batch: OperationBatch, known_up_to: int = -1) -> None:
        self.kind: Final = kind
        self.batch: Final = batch
        self.known_up_to: Final = known_up_to


class Apply(Call):
    """Apply the events of a batch from `start` on; each event counts as a unit of work.

    The effects of one event are never split. Partitions and keys that become known are counted in `usage` (None: the
    shared usage without an account). With `is_full`, events that would create a partition, key, replica or epoch are
    refused.
    """

    def __init__(
        self, batch: EventBatch, start: int = 0, usage: AccountUsage | None = None, is_full: bool = False
    ) -> None:
        self.batch: Final = batch
        self.start: Final = start
        self.usage: Final = usage
        self.is_full: Final = is_full


class Cancel(Call):
    """Cancel operations of the owner by id."""

    def __init__(self, operation_ids: list[int]) -> None:
        self.operation_ids: Final = operation_ids


class CancelAll(Call):
    """Cancel the pending operations of the owner with ids up to `up_to_id`, lowest ids first."""

    def __init__(self, up_to_id: int = OPERATION_ID_MAX) -> None:
        self.up_to_id: Final = up_to_id


class CancelName(Call):
    """Cancel the operations of all owners that wait on a partition, or on a key as `(key, -1)`."""

    def __init__(self, name: PartitionName) -> None:
        self.name: Final = name


class Extend(Call):
    """Let operations of the owner wait for at least `timeout_ms` from now on.

    A deadline only moves to a later time. One that is due but has not been handled moves too.
    """

    def __init__(self, operation_ids: list[int], timeout_ms: int) -> None:
        self.operation_ids: Final = operation_ids
        self.timeout_ms: Final = timeout_ms


class FailStale(Call):
    """End operations of the owner whose stale timeout is over, as FAILED. Their marks in `stale` get MARK_STALE."""

    def __init__(self, operation_ids: list[int], stale: set[PartitionName]) -> None:
        self.operation_ids: Final = operation_ids
        self.stale: Final = stale


class ShutDown(Call):
    """End up to `limit` operations, of the owner or (without one) of all, as SHUTTING_DOWN."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit


class PassTime(Call):
    """End up to `limit` operations that expire or have missed a heartbeat, by deadline."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit


class Pause(Call):
    """Count the last `pause_ms` neither as silence of a key nor for stale timeouts.

    `Receipt.unchanged` is 1 if no pending operation has either, so that the call need not be recorded.
    """

    def __init__(self, pause_ms: int) -> None:
        self.pause_ms: Final = pause_ms


# Codes of calls, by which a tape identifies its steps.
APPLY: Final = 1
PASS_TIME: Final = 2
CANCEL: Final = 3
CANCEL_NAME: Final = 5
EXTEND: Final = 6
FAIL_STALE: Final = 7
SHUT_DOWN: Final = 8
PAUSE: Final = 9
REGISTER: Final = 16
"""Plus the code of a kind: registers operations of that kind. Last, so that kinds may be added."""
