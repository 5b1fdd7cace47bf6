"""An event read from its columns, and its validation. All checks pass before anything is changed."""

from typing import Final

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, PartitionName, ReplicaSets
from purgatory.engine.codes import (
    EVENT_NAMES,
    FAILED_PRECONDITION,
    FENCED_LEADER_EPOCH,
    FOLLOWER_PROGRESS,
    HIGH_WATERMARK,
    IN_SYNC_REPLICAS,
    INVALID_ARGUMENT,
    KAFKA_STORAGE_ERROR,
    LAST_STABLE_OFFSET,
    LEADER_APPEND,
    LEADERSHIP,
    LOG_START_OFFSET,
    NOT_FOUND,
    OFFSET_MAX,
    OFFSET_OUT_OF_RANGE,
    PARTITION_REMOVED,
    REPLICA_STATE,
    RESOURCE_EXHAUSTED,
    STORAGE_FAILED,
    STORAGE_ONLINE,
    TRUNCATION,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from purgatory.engine.columns import check_length, value_at
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.partition import Partition
from purgatory.engine.names import cut

INT32_MAX: Final = 2**31 - 1
POSITION_MAX: Final = OFFSET_MAX // 4
"""Byte positions add up over segments."""

REPLICAS_MAX: Final = 1_000
"""Maximum number of replicas of one partition."""

NO_SETS: Final = ReplicaSets()


class Event:
    """One event, read from a row of a batch whose columns were checked. -1: not present."""

    def __init__(self, batch: EventBatch, row: int) -> None:
        sets = batch.replica_sets[row] if batch.replica_sets else None
        self.kind: Final = batch.types[row]
        self.leader_epoch: Final = value_at(batch.leader_epochs, row, -1)
        self.offset: Final = value_at(batch.offsets, row, -1)
        self.replica_id: Final = value_at(batch.replica_ids, row, -1)
        self.byte_position: Final = value_at(batch.byte_positions, row, -1)
        self.segment_base_offset: Final = value_at(batch.segment_base_offsets, row, -1)
        self.log_start_offset: Final = value_at(batch.log_start_offsets, row, -1)
        self.flags: Final = value_at(batch.flags, row, 0)
        self.sets: Final = NO_SETS if sets is None else sets


def check_columns(batch: EventBatch) -> None:
    """Raise InvalidBatch if the columns of a batch do not fit together."""
    rows = len(batch.types)
    check_length("item_index", len(batch.item_indexes), rows)
    check_length("offset", len(batch.offsets), rows)
    check_length("leader_epoch", len(batch.leader_epochs), rows)
    check_length("replica_id", len(batch.replica_ids), rows)
    check_length("byte_position", len(batch.byte_positions), rows)
    check_length("segment_base_offset", len(batch.segment_base_offsets), rows)
    check_length("log_start_offset", len(batch.log_start_offsets), rows)
    check_length("flags", len(batch.flags), rows)
    if len(batch.values) not in (0, rows):
        raise InvalidBatch("values", f"has {len(batch.values)} values; it takes {rows} or none")
    if len(batch.replica_sets) not in (0, rows):
        raise InvalidBatch("replica_sets", f"has {len(batch.replica_sets)} values; it takes {rows} or none")


class Fault:
    """Why an event is refused: the fields of a `Refusal`, without the index in the batch."""

    def __init__(self, code: int, field: str, message: str, error_code: int = 0) -> None:
        self.code: Final = code
        self.field: Final = field
        self.message: Final = message
        self.error_code: Final = error_code


def invalid(field: str, message: str, error_code: int = 0) -> Fault:
    """The refusal of a value that is wrong whatever happens next."""
    return Fault(INVALID_ARGUMENT, field, message, error_code)


def out_of_range(field: str, value: int, lowest: int, highest: int) -> Fault:
    """The refusal of a value that is not in `lowest..highest`."""
    return invalid(field, f"{value} is not in {lowest}..{highest}")


def no_memory(field: str) -> Fault:
    """The refusal of an event that would create something while memory is short."""
    message = "memory is short: only events for known partitions and keys are accepted; try again later"
    return Fault(RESOURCE_EXHAUSTED, field, message)


class EventChecks:
    """Checks one event: first its own fields, then the state of its partition."""

    def __init__(self, limits: EngineLimits, strict_partitions: bool) -> None:
        self.limits: Final = limits
        self.strict_partitions: Final = strict_partitions
        self.is_full = False
        """Memory is short: nothing new may become known."""

    def fault(
        self,
        name: PartitionName,
        partition: Partition | None,
        partition_count: int,
        event: Event,
        account: AccountUsage,
    ) -> Fault | None:
        """Why the event is refused, or None. `partition` is None if it is unknown; it would be counted in `account`."""
        return (
            self._shape_fault(event)
            or self._state_fault(name, partition, partition_count, event)
            # Memory last: an event that is wrong anyway must not be told to come again when there is room.
            or self._room_fault(partition, event, account)
        )

    def _room_fault(self, partition: Partition | None, event: Event, account: AccountUsage) -> Fault | None:
        """Check that there is room and memory for everything that the event would create."""
        if partition is None:
            # The removal of an unknown partition changes nothing, so it needs no room.
            if event.kind == PARTITION_REMOVED:
                return None
            if account.partitions >= account.partitions_max:
                message = f"you first named {account.partitions} of the known partitions, which is your current share"
                return Fault(RESOURCE_EXHAUSTED, "topic_partition", message)
            return no_memory("topic_partition") if self.is_full else None
        if not self.is_full:
            return None
        # A newer epoch adds an entry to the epoch cache.
        if event.leader_epoch > partition.leader_epoch:
            return no_memory("leader_epoch")
        sets = event.sets
        named = [*sets.replicas, *sets.in_sync, *sets.proposed]
        if event.kind in (FOLLOWER_PROGRESS, REPLICA_STATE):
            named.append(event.replica_id)
        known = partition.replicas
        if any(replica_id not in known and replica_id != partition.leader_id for replica_id in named):
            return no_memory(EVENT_NAMES[event.kind])
        return None

    def _shape_fault(self, event: Event) -> Fault | None:
        """Errors that do not depend on the partition."""
        kind = event.kind
        name = EVENT_NAMES[kind]
        if event.leader_epoch < -1 or event.leader_epoch > INT32_MAX:
            return out_of_range("leader_epoch", event.leader_epoch, 0, INT32_MAX)
        if kind in (LEADER_APPEND, FOLLOWER_PROGRESS, HIGH_WATERMARK, LOG_START_OFFSET, TRUNCATION):
            field = f"{name}.offset" if kind not in (LEADER_APPEND, FOLLOWER_PROGRESS) else f"{name}.log_end_offset"
            if not 0 <= event.offset < OFFSET_MAX:
                return out_of_range(field, event.offset, 0, OFFSET_MAX - 1)
        if kind in (LAST_STABLE_OFFSET, LEADERSHIP) and not -1 <= event.offset < OFFSET_MAX:
            field = f"{name}.offset" if kind == LAST_STABLE_OFFSET else f"{name}.epoch_start_offset"
            return out_of_range(field, event.offset, 0, OFFSET_MAX - 1)
        if kind in (FOLLOWER_PROGRESS, REPLICA_STATE) and not 0 <= event.replica_id <= INT32_MAX:
            return out_of_range(f"{name}.replica_id", event.replica_id, 0, INT32_MAX)
        if kind == FOLLOWER_PROGRESS and not -1 <= event.log_start_offset < OFFSET_MAX:
            return out_of_range(f"{name}.log_start_offset", event.log_start_offset, 0, OFFSET_MAX - 1)
        if kind == LEADER_APPEND:
            if not -1 <= event.byte_position < POSITION_MAX:
                return out_of_range(f"{name}.byte_position", event.byte_position, 0, POSITION_MAX - 1)
            if not -1 <= event.segment_base_offset <= event.offset:
                message = f"{event.segment_base_offset} is not in 0..{event.offset}, the log end offset"
                return invalid(f"{name}.segment_base_offset", message)
        if kind == LEADERSHIP and event.leader_epoch < 0:
            return invalid("leader_epoch", "a leadership event needs its leader epoch")
        return self._sets_fault(event) if kind in (IN_SYNC_REPLICAS, LEADERSHIP) else None

    def _sets_fault(self, event: Event) -> Fault | None:
        sets = event.sets
        name = EVENT_NAMES[event.kind]
        for field, ids in (
            ("replica_ids", sets.replicas),
            ("replica_ids", sets.in_sync),
            ("proposed_replica_ids", sets.proposed),
        ):
            if len(ids) > REPLICAS_MAX:
                return invalid(f"{name}.{field}", f"{len(ids)} ids are over the limit of {REPLICAS_MAX}")
            for replica_id in ids:
                if not 0 <= replica_id <= INT32_MAX:
                    return out_of_range(f"{name}.{field}", replica_id, 0, INT32_MAX)
        if not -1 <= sets.leader_id <= INT32_MAX:
            return out_of_range(f"{name}.leader_id", sets.leader_id, 0, INT32_MAX)
        if sets.min_in_sync_replicas != -1 and not 1 <= sets.min_in_sync_replicas <= INT32_MAX:
            return out_of_range(f"{name}.min_in_sync_replicas", sets.min_in_sync_replicas, 1, INT32_MAX)
        return None

    def _state_fault(
        self, name: PartitionName, partition: Partition | None, partition_count: int, event: Event
    ) -> Fault | None:
        """Errors that depend on the current state of the partition."""
        kind = event.kind
        if partition is None:
            if kind != PARTITION_REMOVED and self.strict_partitions and kind not in (LEADERSHIP, LEADER_APPEND):
                message = f"{cut(name[0])}-{name[1]} is not known; announce it with a leadership or leader_append event"
                return Fault(NOT_FOUND, "topic_partition", message, UNKNOWN_TOPIC_OR_PARTITION)
            if partition_count >= self.limits.partitions_max and kind != PARTITION_REMOVED:
                message = f"the limit of {self.limits.partitions_max} known partitions is reached"
                return Fault(RESOURCE_EXHAUSTED, "topic_partition", message)
        # Before the check of the storage, which is the order that docs/semantics.md states: events of a former leader
        # are counted as stale even while the storage has failed.
        elif 0 <= event.leader_epoch < partition.leader_epoch:
            message = f"{event.leader_epoch} is stale; the partition is at epoch {partition.leader_epoch}"
            return Fault(FAILED_PRECONDITION, "leader_epoch", message, FENCED_LEADER_EPOCH)
        # A change of leadership is accepted: this is how a partition moves away from a failed disk.
        elif partition.storage_failed and kind not in (STORAGE_ONLINE, STORAGE_FAILED, PARTITION_REMOVED, LEADERSHIP):
            message = f"the storage of {cut(name[0])}-{name[1]} has failed; report when it is online again"
            return Fault(FAILED_PRECONDITION, "topic_partition", message, KAFKA_STORAGE_ERROR)
        return self._replica_fault(partition, event) or (
            None if partition is None else self._offset_fault(partition, event)
        )

    def _replica_fault(self, partition: Partition | None, event: Event) -> Fault | None:
        kind = event.kind
        leader_id = -1 if partition is None else int(partition.leader_id)
        # Otherwise the leader would become a remote replica too, which never reports progress and holds every mark
        # back.
        if kind == IN_SYNC_REPLICAS and leader_id < 0 and event.sets.leader_id < 0:
            return invalid("in_sync_replicas.leader_id", "the leader's id is not known yet; set it here")
        if kind in (FOLLOWER_PROGRESS, REPLICA_STATE) and event.replica_id == leader_id:
            message = f"{event.replica_id} is the leader; report its progress as leader_append"
            return invalid(f"{EVENT_NAMES[kind]}.replica_id", message)
        return None if partition is None else self._replica_room_fault(partition, event)

    @staticmethod
    def _replica_room_fault(partition: Partition, event: Event) -> Fault | None:
        """Check that there is room for the replicas that the event would create: they make each append slower."""
        kind = event.kind
        known = partition.replicas
        # A leadership event is not limited here: it replaces the replicas, and its list has a limit of its own.
        made = 0
        if kind in (FOLLOWER_PROGRESS, REPLICA_STATE):
            made = 0 if event.replica_id in known else 1
        elif kind == IN_SYNC_REPLICAS:
            made = sum(replica_id not in known for replica_id in set(event.sets.in_sync) | set(event.sets.proposed))
        if made == 0 or len(known) + made <= REPLICAS_MAX:
            return None
        message = (
            f"{len(known)} replicas are known; the limit is {REPLICAS_MAX}; a leadership event sets the assigned ones"
        )
        return Fault(RESOURCE_EXHAUSTED, EVENT_NAMES[kind], message)

    def _offset_fault(self, partition: Partition, event: Event) -> Fault | None:
        if event.kind == LOG_START_OFFSET and 0 <= partition.high_watermark < event.offset:
            message = f"{event.offset} is above the high watermark {partition.high_watermark}"
            return invalid("log_start_offset.offset", message, OFFSET_OUT_OF_RANGE)
        # An append below the known end is a repetition that moves nothing, so its position is not compared.
        if event.kind == LEADER_APPEND and event.offset >= partition.log_end_offset:
            said = partition.positions.fault(event.offset, event.segment_base_offset, event.byte_position)
            if said:
                return invalid("leader_append.byte_position", said, OFFSET_OUT_OF_RANGE)
        return None
