"""Events that listeners receive: one frozen object for each hook that has more than two values.

The host builds an event once per engine call and passes the same object to every listener, so its cost does not grow
with the number of operations. Listeners must not modify the batches, receipts and completions in it.

`session` is None for unary waits. `principal` is set in both cases; it is empty for a caller without a principal.
`now_ms` is the engine time of the call, in milliseconds. `ended` is the number of operations that the call ended.
"""

from typing import NamedTuple

from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName, Receipt
from purgatory.engine.completions import Completions
from purgatory.service.sessions.session import Session


class Registered(NamedTuple):
    """A batch of operations of one kind was registered, or was refused before the engine saw it."""

    session: Session | None
    principal: str
    kind: int
    batch: OperationBatch
    receipt: Receipt
    now_ms: int


class Applied(NamedTuple):
    """A slice of a batch of events was applied: the events from `start` up to, not including, `receipt.next_index`."""

    principal: str
    batch: EventBatch
    start: int
    receipt: Receipt
    now_ms: int


class Cancelled(NamedTuple):
    """Operations were cancelled by id. `operation_ids` may contain ids that were not pending."""

    session: Session | None
    operation_ids: list[int]
    ended: int
    now_ms: int


class CancelledSession(NamedTuple):
    """All pending operations of a session were cancelled."""

    session: Session
    ended: int
    now_ms: int


class CancelledWaits(NamedTuple):
    """All operations waiting on a partition, or on a key as `(key, -1)`, were cancelled."""

    name: PartitionName
    ended: int
    now_ms: int


class Extended(NamedTuple):
    """Pending operations were given more time."""

    session: Session
    operation_ids: list[int]
    timeout_ms: int
    now_ms: int


class FailedStale(NamedTuple):
    """Operations were failed because the marks of the partitions in `stale` are stale."""

    session: Session | None
    operation_ids: list[int]
    stale: set[PartitionName]
    ended: int
    now_ms: int


class Completed(NamedTuple):
    """Operations of one owner have ended. Their results have no sequence numbers yet."""

    session: Session | None
    principal: str
    completions: Completions
