"""Events, which report to the daemon what happened: a function for each type, and the receipt that answers them.

Each function raises InvalidRequest for what cannot be sent. `name` is a partition, "orders-3" or ("orders", 3), and
`leader_epoch` the epoch of whoever reports: an event with an older epoch than the partition's is refused.

An `Event` has the values of the column form; the few types that have only a row form carry their row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from purgatory.v1 import event_pb2 as wire
from purgatory_client.base_errors import PurgatoryClientError
from purgatory_client.number_checks import int32, int64
from purgatory_client.partition_names import PartitionName, checked_key, partition_name
from purgatory_client.waits import Name

STALE_EPOCH: Final = 74


@dataclass(slots=True, eq=False)
class Event:
    """One event, made by a function of this module; -1 stands for "not given"."""

    type: int
    name: PartitionName | None
    key: str = ""
    offset: int = -1
    leader_epoch: int = -1
    replica_id: int = -1
    byte_position: int = -1
    segment_base_offset: int = -1
    log_start_offset: int = -1
    row: wire.Event | None = None


@dataclass(slots=True, eq=False)
class EventRefusal:
    """Why an event was refused.

    Attributes:
        index: The event's place among those of the call.
        code: A `google.rpc.Code`.
        error_code: Kafka's error code, or 0.
        field: The part at fault, or empty.
        message: What is wrong with it.
    """

    index: int
    code: int
    error_code: int
    field: str
    message: str

    def __repr__(self) -> str:
        return f"EventRefusal({self.index}, error_code={self.error_code}, {self.field!r}, {self.message!r})"


@dataclass(slots=True, eq=False)
class AdvanceReceipt:
    """What the events of a call did. Refused ones changed nothing; the others were applied.

    Attributes:
        ended: For each event: how many operations it ended.
        unchanged: How many events changed nothing, as the daemon knew it already. None when the events shared a message
            with those of other calls, because the daemon counts by message.
        refusals: The events that were refused.
    """

    ended: list[int]
    unchanged: int | None
    refusals: list[EventRefusal]

    @property
    def ended_total(self) -> int:
        """How many operations the events ended together."""
        return sum(self.ended)

    def raise_for_refusals(self) -> AdvanceReceipt:
        """Raise EventRefused (StaleEpoch for an old leader epoch) if an event was refused; else return this receipt."""
        for refusal in self.refusals:
            kind = StaleEpoch if refusal.error_code == STALE_EPOCH else EventRefused
            where = f"{refusal.field}: " if refusal.field else ""
            raise kind(f"event {refusal.index} refused: {where}{refusal.message}", self)
        return self


class EventRefused(PurgatoryClientError):
    """An event was refused and changed nothing; the other events of the call were applied.

    Attributes:
        receipt: Which events were refused and why, and what the others did.
    """

    def __init__(self, message: str, receipt: AdvanceReceipt) -> None:
        super().__init__(message)
        self.receipt: Final = receipt


class StaleEpoch(EventRefused):
    """The event's leader epoch is older than the partition's (74)."""


def log_end_offset(
    name: Name,
    offset: int,
    *,
    byte_position: int | None = None,
    segment_base_offset: int | None = None,
    leader_epoch: int | None = None,
) -> Event:
    """The leader's log has grown to this log end offset; `byte_position` and the segment are those of that offset."""
    return _event(
        wire.EVENT_TYPE_LEADER_APPEND,
        name,
        offset=offset,
        byte_position=byte_position,
        segment_base_offset=segment_base_offset,
        leader_epoch=leader_epoch,
    )


def follower_progress(
    name: Name,
    replica_id: int,
    log_end_offset: int,
    *,
    log_start_offset: int | None = None,
    leader_epoch: int | None = None,
) -> Event:
    """A follower has fetched: its log end offset, and its log start offset where it has moved."""
    return _event(
        wire.EVENT_TYPE_FOLLOWER_PROGRESS,
        name,
        offset=log_end_offset,
        replica_id=replica_id,
        log_start_offset=log_start_offset,
        leader_epoch=leader_epoch,
    )


def high_watermark(name: Name, offset: int, *, leader_epoch: int | None = None) -> Event:
    """The high watermark has moved."""
    return _event(wire.EVENT_TYPE_HIGH_WATERMARK, name, offset=offset, leader_epoch=leader_epoch)


def last_stable_offset(name: Name, offset: int | None, *, leader_epoch: int | None = None) -> Event:
    """The start of the oldest open transaction; None: none is open."""
    return _event(wire.EVENT_TYPE_LAST_STABLE_OFFSET, name, offset=offset, leader_epoch=leader_epoch)


def log_start_offset(name: Name, offset: int, *, leader_epoch: int | None = None) -> Event:
    """The first readable offset has moved up."""
    return _event(wire.EVENT_TYPE_LOG_START_OFFSET, name, offset=offset, leader_epoch=leader_epoch)


def truncation(name: Name, offset: int, *, leader_epoch: int | None = None) -> Event:
    """The log was cut to this log end offset."""
    return _event(wire.EVENT_TYPE_TRUNCATION, name, offset=offset, leader_epoch=leader_epoch)


def storage_failed(name: Name, *, leader_epoch: int | None = None) -> Event:
    """The log directory failed; all that waits on the partition ends (56)."""
    return _event(wire.EVENT_TYPE_STORAGE_FAILED, name, leader_epoch=leader_epoch)


def storage_online(name: Name, *, leader_epoch: int | None = None) -> Event:
    """The log directory is back."""
    return _event(wire.EVENT_TYPE_STORAGE_ONLINE, name, leader_epoch=leader_epoch)


def signalled(key: str, count: int = 1) -> Event:
    """A key was signalled so many times."""
    return Event(wire.EVENT_TYPE_SIGNAL, None, checked_key(key), int64(count, "offset"))


def removed(name: Name, *, moved: bool = False, leader_epoch: int | None = None) -> Event:
    """The partition is gone: deleted (waits end with 3), or moved elsewhere (6)."""
    row = wire.Event(partition_removed=wire.PartitionRemoved(moved=True)) if moved else None
    return _event(wire.EVENT_TYPE_PARTITION_REMOVED, name, leader_epoch=leader_epoch, row=row)


def in_sync_replicas(
    name: Name,
    replica_ids: Iterable[int] = (),
    *,
    proposed: Iterable[int] = (),
    leader_id: int | None = None,
    min_in_sync_replicas: int | None = None,
    leader_epoch: int | None = None,
) -> Event:
    """The in-sync set (leader included), a proposed one, or the minimum size that may acknowledge, has changed."""
    change = wire.InSyncReplicas(
        replica_ids=_ids(replica_ids, "in_sync_replicas"),
        proposed_replica_ids=_ids(proposed, "proposed"),
        leader_id=None if leader_id is None else int32(leader_id, "leader_id"),
        min_in_sync_replicas=(
            None if min_in_sync_replicas is None else int32(min_in_sync_replicas, "min_in_sync_replicas")
        ),
    )
    row = wire.Event(in_sync_replicas=change)
    return _event(wire.EVENT_TYPE_IN_SYNC_REPLICAS, name, leader_epoch=leader_epoch, row=row)


def leadership(
    name: Name,
    *,
    is_leader: bool,
    leader_epoch: int,
    leader_id: int | None = None,
    replica_ids: Iterable[int] = (),
    epoch_start_offset: int | None = None,
) -> Event:
    """Who leads has changed, with a new leader epoch."""
    change = wire.Leadership(
        is_leader=is_leader,
        leader_id=None if leader_id is None else int32(leader_id, "leader_id"),
        replica_ids=_ids(replica_ids, "replica_ids"),
        epoch_start_offset=None if epoch_start_offset is None else int64(epoch_start_offset, "epoch_start_offset"),
    )
    row = wire.Event(leadership=change)
    return _event(wire.EVENT_TYPE_LEADERSHIP, name, leader_epoch=leader_epoch, row=row)


def replica_state(
    name: Name, replica_id: int, *, dead: bool = False, fenced: bool = False, leader_epoch: int | None = None
) -> Event:
    """A replica's broker died or came back, or may (not) join the in-sync set."""
    change = wire.ReplicaState(replica_id=int32(replica_id, "replica_id"), dead=dead, fenced=fenced)
    row = wire.Event(replica_state=change)
    return _event(wire.EVENT_TYPE_REPLICA_STATE, name, leader_epoch=leader_epoch, row=row)


def _event(
    event_type: int, name: Name, *, leader_epoch: int | None, row: wire.Event | None = None, **values: int | None
) -> Event:
    """An event on a partition. `values` are attributes of it, None where not given."""
    event = Event(event_type, partition_name(name), row=row)
    if leader_epoch is not None:
        event.leader_epoch = int32(leader_epoch, "leader_epoch")
    for field, value in values.items():
        if value is not None:
            setattr(event, field, int32(value, field) if field == "replica_id" else int64(value, field))
    return event


def _ids(values: Iterable[int], field: str) -> Sequence[int]:
    return [int32(value, field) for value in values]
