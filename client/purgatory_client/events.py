"""Events that report to the daemon what happened: one function per type, and the receipt for them.

In all functions `name` is a partition, "orders-3" or ("orders", 3). `leader_epoch` is the leader epoch of the reporter;
the daemon refuses an event whose epoch is older than the partition's, and does not check it if it is None. Offsets are
log offsets unless bytes are mentioned. Every function raises InvalidRequest for a malformed name or key, and for a
number that does not fit the wire.

An `Event` contains the values of the column form; the few types that exist only in row form carry their row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from purgatory.v1 import event_pb2 as wire
from purgatory_client.argument_checks import checked_type, int32, int64, several, truth
from purgatory_client.errors import EventRefused, StaleEpoch
from purgatory_client.partition_names import PartitionName, checked_key, partition_name
from purgatory_client.waits import Name

STALE_EPOCH: Final = 74


@dataclass(slots=True, eq=False)
class Event:
    """One event, made by a function of this module. -1 means that a value was not given."""

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
        index: The event's position in the call.
        code: A `google.rpc.Code`.
        error_code: Kafka's error code, or 0.
        field: The invalid field, or empty.
        message: Why it is invalid.
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
    """The effect of the events of a call. Refused events changed nothing; the others were applied.

    Attributes:
        ended: The number of operations that each event ended.
        unchanged: The number of events that changed nothing because the daemon knew them already. None if the events
            shared a message with those of other calls, because the daemon counts per message.
        refusals: The events that were refused.
    """

    ended: list[int]
    unchanged: int | None
    refusals: list[EventRefusal]

    @property
    def ended_total(self) -> int:
        """The number of operations that all events ended."""
        return sum(self.ended)

    def raise_for_refusals(self) -> "AdvanceReceipt":
        """Raise EventRefused (StaleEpoch for an old leader epoch) if an event was refused; else return this receipt."""
        for refusal in self.refusals:
            kind = StaleEpoch if refusal.error_code == STALE_EPOCH else EventRefused
            where = f"{refusal.field}: " if refusal.field else ""
            raise kind(f"event {refusal.index} refused: {where}{refusal.message}", self)
        return self


def log_end_offset(
    name: Name,
    offset: int,
    *,
    byte_position: int | None = None,
    segment_base_offset: int | None = None,
    leader_epoch: int | None = None,
) -> Event:
    """The leader's log has grown to `offset`: last appended offset + 1.

    Args:
        name: The partition.
        offset: The new log end offset.
        byte_position: The position of `offset` in the log, in bytes. Needed for fetches that wait for bytes.
        segment_base_offset: The first offset of the segment that contains `offset`.
        leader_epoch: The leader epoch of the reporter.
    """
    values = {"offset": offset, "byte_position": byte_position, "segment_base_offset": segment_base_offset}
    return _event(wire.EVENT_TYPE_LEADER_APPEND, name, leader_epoch, **values)


def follower_progress(
    name: Name,
    replica_id: int,
    log_end_offset: int,
    *,
    log_start_offset: int | None = None,
    leader_epoch: int | None = None,
) -> Event:
    """A follower has fetched: it has stored every record below `log_end_offset`. No log start offset: unchanged."""
    values = {"offset": log_end_offset, "replica_id": replica_id, "log_start_offset": log_start_offset}
    return _event(wire.EVENT_TYPE_FOLLOWER_PROGRESS, name, leader_epoch, **values)


def high_watermark(name: Name, offset: int, *, leader_epoch: int | None = None) -> Event:
    """The high watermark has moved to `offset`: all in-sync replicas have every record below."""
    return _event(wire.EVENT_TYPE_HIGH_WATERMARK, name, leader_epoch, offset=offset)


def last_stable_offset(name: Name, offset: int | None, *, leader_epoch: int | None = None) -> Event:
    """The last stable offset: `offset` is the start of the oldest open transaction. None: no transaction is open."""
    return _event(wire.EVENT_TYPE_LAST_STABLE_OFFSET, name, leader_epoch, offset=offset)


def log_start_offset(name: Name, offset: int, *, leader_epoch: int | None = None) -> Event:
    """The first readable offset has moved up to `offset`."""
    return _event(wire.EVENT_TYPE_LOG_START_OFFSET, name, leader_epoch, offset=offset)


def truncation(name: Name, offset: int, *, leader_epoch: int | None = None) -> Event:
    """The log was truncated: `offset` is the new log end offset."""
    return _event(wire.EVENT_TYPE_TRUNCATION, name, leader_epoch, offset=offset)


def storage_failed(name: Name, *, leader_epoch: int | None = None) -> Event:
    """The partition's log directory failed. All operations that wait on the partition end with error 56."""
    return _event(wire.EVENT_TYPE_STORAGE_FAILED, name, leader_epoch)


def storage_online(name: Name, *, leader_epoch: int | None = None) -> Event:
    """The partition's log directory is available again."""
    return _event(wire.EVENT_TYPE_STORAGE_ONLINE, name, leader_epoch)


def signalled(key: str, count: int = 1, *, value: bytes = b"", failed: bool = False) -> Event:
    """A key was signalled `count` times.

    Args:
        key: The key.
        count: How many times; 0: a heartbeat, which does not count but ends the silence of the key.
        value: Delivered in the results of all waits on the key, at most 4,096 bytes. Only the first value of a key
            counts. Empty: none.
        failed: Whether what the key stands for has failed. Waits on the key fail (error 1003), and so do later ones.
    """
    event = Event(wire.EVENT_TYPE_SIGNAL, None, checked_key(key), int64(count, "offset"))
    checked_type(value, bytes, "key_signalled.value", "give bytes, such as text.encode()")
    if truth(failed, "key_signalled.failed") or value:
        signal = wire.KeySignalled(key=event.key, count=event.offset, value=value, failed=failed)
        event.row = wire.Event(key_signalled=signal)
    return event


def removed(name: Name, *, moved: bool = False, leader_epoch: int | None = None) -> Event:
    """The partition was deleted (waits end with error 3), or moved to another broker (error 6)."""
    if moved:
        row = wire.Event(partition_removed=wire.PartitionRemoved(moved=True))
        return _row(wire.EVENT_TYPE_PARTITION_REMOVED, name, leader_epoch, row)
    return _event(wire.EVENT_TYPE_PARTITION_REMOVED, name, leader_epoch)


def in_sync_replicas(
    name: Name,
    replica_ids: Iterable[int] = (),
    *,
    proposed: Iterable[int] = (),
    leader_id: int | None = None,
    min_in_sync_replicas: int | None = None,
    leader_epoch: int | None = None,
) -> Event:
    """The in-sync set has changed, or a change is proposed. An argument that is None is unchanged.

    Args:
        name: The partition.
        replica_ids: The in-sync set, including the leader.
        proposed: A larger set that is not confirmed yet. Its members already hold back the high watermark.
        leader_id: The leader's replica id.
        min_in_sync_replicas: The minimum size of the set for acknowledging a write.
        leader_epoch: The leader epoch of the reporter.
    """
    change = wire.InSyncReplicas(
        replica_ids=_ids(replica_ids, "in_sync_replicas"),
        proposed_replica_ids=_ids(proposed, "proposed"),
        leader_id=_id(leader_id, "leader_id"),
        min_in_sync_replicas=_id(min_in_sync_replicas, "min_in_sync_replicas"),
    )
    return _row(wire.EVENT_TYPE_IN_SYNC_REPLICAS, name, leader_epoch, wire.Event(in_sync_replicas=change))


def leadership(
    name: Name,
    *,
    is_leader: bool,
    leader_epoch: int,
    leader_id: int | None = None,
    replica_ids: Iterable[int] = (),
    epoch_start_offset: int | None = None,
) -> Event:
    """The leadership has changed.

    Args:
        name: The partition.
        is_leader: Whether the reporter leads the partition now. If not, waits that need the leader end with error 6.
        leader_epoch: The new leader epoch.
        leader_id: The leader's replica id. None: unchanged.
        replica_ids: All assigned replicas, including the leader. Empty: unchanged.
        epoch_start_offset: The first offset of the epoch. None: the current log end offset.
    """
    change = wire.Leadership(
        is_leader=truth(is_leader, "leadership.is_leader"),
        leader_id=_id(leader_id, "leader_id"),
        replica_ids=_ids(replica_ids, "replica_ids"),
        epoch_start_offset=None if epoch_start_offset is None else int64(epoch_start_offset, "epoch_start_offset"),
    )
    return _row(wire.EVENT_TYPE_LEADERSHIP, name, leader_epoch, wire.Event(leadership=change))


def replica_state(
    name: Name, replica_id: int, *, dead: bool = False, fenced: bool = False, leader_epoch: int | None = None
) -> Event:
    """The state of a replica has changed: its broker is `dead`, it may not join the in-sync set (`fenced`), or
    neither.
    """
    change = wire.ReplicaState(replica_id=int32(replica_id, "replica_id"), dead=dead, fenced=fenced)
    return _row(wire.EVENT_TYPE_REPLICA_STATE, name, leader_epoch, wire.Event(replica_state=change))


def _event(event_type: int, name: Name, leader_epoch: int | None, **values: int | None) -> Event:
    """An event on a partition in column form. `values` are its attributes; those that are None are not set."""
    event = Event(event_type, partition_name(name))
    if leader_epoch is not None:
        event.leader_epoch = int32(leader_epoch, "leader_epoch")
    for field, value in values.items():
        if value is not None:
            setattr(event, field, int32(value, field) if field == "replica_id" else int64(value, field))
    return event


def _row(event_type: int, name: Name, leader_epoch: int | None, row: wire.Event) -> Event:
    """An event on a partition that has no column form."""
    event = _event(event_type, name, leader_epoch)
    event.row = row
    assert event.name is not None, "an event on no partition"
    row.topic_partition.topic, row.topic_partition.partition = event.name
    if leader_epoch is not None:
        row.leader_epoch = leader_epoch
    return event


def _id(value: int | None, field: str) -> int | None:
    return None if value is None else int32(value, field)


def _ids(values: Iterable[int], field: str) -> Sequence[int]:
    return [int32(value, field) for value in several(values, field)]
