"""Events from the wire to the engine: columns are copied, rows are turned into columns. Pure functions.

The engine checks events one by one. Only what columns cannot say (events with sets of replicas) is refused here: the
type of such an event is set to 0, which the engine refuses, and the refusal found here takes that one's place.
"""

from collections.abc import Iterable
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, PartitionName, Refusal, ReplicaSets
from purgatory.v1 import event_pb2

REFUSED_TYPE: Final = 0
ROW_ONLY_TYPES: Final = frozenset({codes.IN_SYNC_REPLICAS, codes.LEADERSHIP, codes.REPLICA_STATE})
DEAD_FLAG: Final = 1
FENCED_FLAG: Final = 2


class IncomingEvents:
    """A batch of events for the engine, and the errors found before the engine saw it, by place in the batch."""

    def __init__(self, batch: EventBatch, refusals: dict[int, Refusal]) -> None:
        self.batch: Final = batch
        self.refusals: Final = refusals

    def __len__(self) -> int:
        return len(self.batch.types)

    def explain(self, refusal: Refusal) -> Refusal:
        """The refusal found here for the same event, as that knows the reason; if there is none, the engine's own."""
        return self.refusals.get(refusal.index, refusal)


def events_from_columns(columns: event_pb2.EventColumns) -> IncomingEvents:
    """A batch of columns, copied. Columns that do not fit together are left to the engine to refuse."""
    types: list[int] = columns.type[:]
    refusals: dict[int, Refusal] = {}
    if not ROW_ONLY_TYPES.isdisjoint(types):
        _refuse_row_only(types, refusals)
    batch = EventBatch(
        types,
        partitions=[(name.topic, name.partition) for name in columns.partitions],
        keys=columns.keys[:],
        item_indexes=columns.item_index[:],
        offsets=columns.offset[:],
        leader_epochs=columns.leader_epoch[:],
        replica_ids=columns.replica_id[:],
        byte_positions=columns.byte_position[:],
        segment_base_offsets=columns.segment_base_offset[:],
        log_start_offsets=columns.log_start_offset[:],
    )
    return IncomingEvents(batch, refusals)


def _refuse_row_only(types: list[int], refusals: dict[int, Refusal]) -> None:
    for index, event_type in enumerate(types):
        if event_type in ROW_ONLY_TYPES:
            message = f"{codes.EVENT_NAMES[event_type]} events go as rows only"
            refusals[index] = Refusal(index, codes.INVALID_ARGUMENT, "type", message)
            types[index] = REFUSED_TYPE


def events_from_rows(events: Iterable[event_pb2.Event]) -> IncomingEvents:
    """Rows as full columns: every row gives each value or has its default."""
    filling = _EventColumns()
    for event in events:
        filling.add(event)
    return filling.finish()


class _EventColumns:
    """Columns that are being filled: `add` appends exactly one value to each."""

    def __init__(self) -> None:
        self._partitions: Final[dict[PartitionName, int]] = {}
        self._keys: Final[dict[str, int]] = {}
        self._batch: Final = EventBatch.to_fill()

    def add(self, event: event_pb2.Event) -> None:
        """Appends one event; an empty one gets an unknown type, which the engine refuses."""
        name = event.WhichOneof("event")
        if name is None:
            self._append(REFUSED_TYPE, 0)
            return
        if name == "key_signalled":
            signalled = event.key_signalled
            key_index = self._keys.setdefault(signalled.key, len(self._keys))
            self._append(codes.KEY_SIGNALLED, key_index, offset=signalled.count if signalled.HasField("count") else 1)
            return
        partition = (event.topic_partition.topic, event.topic_partition.partition)
        item_index = self._partitions.setdefault(partition, len(self._partitions))
        epoch = event.leader_epoch if event.HasField("leader_epoch") else codes.UNKNOWN
        if name == "leader_append":
            self._add_leader_append(item_index, epoch, event.leader_append)
        elif name == "follower_progress":
            progress = event.follower_progress
            log_start = progress.log_start_offset if progress.HasField("log_start_offset") else codes.UNKNOWN
            self._append(
                codes.FOLLOWER_PROGRESS, item_index, epoch=epoch, offset=progress.log_end_offset,
                replica_id=progress.replica_id, log_start_offset=log_start,
            )  # fmt: skip
        elif name == "in_sync_replicas":
            self._add_in_sync_replicas(item_index, epoch, event.in_sync_replicas)
        elif name == "leadership":
            self._add_leadership(item_index, epoch, event.leadership)
        elif name == "replica_state":
            state = event.replica_state
            flags = (DEAD_FLAG if state.dead else 0) | (FENCED_FLAG if state.fenced else 0)
            self._append(codes.REPLICA_STATE, item_index, epoch=epoch, replica_id=state.replica_id, flags=flags)
        else:
            self._add_mark(item_index, epoch, event)

    def finish(self) -> IncomingEvents:
        self._batch.partitions.extend(self._partitions)
        self._batch.keys.extend(self._keys)
        return IncomingEvents(self._batch, {})

    def _add_mark(self, item_index: int, epoch: int, event: event_pb2.Event) -> None:
        """Events that have one offset at most."""
        if event.HasField("high_watermark"):
            self._append(codes.HIGH_WATERMARK, item_index, epoch=epoch, offset=event.high_watermark.offset)
        elif event.HasField("last_stable_offset"):
            stable = event.last_stable_offset
            offset = stable.offset if stable.HasField("offset") else codes.UNKNOWN
            self._append(codes.LAST_STABLE_OFFSET, item_index, epoch=epoch, offset=offset)
        elif event.HasField("log_start_offset"):
            self._append(codes.LOG_START_OFFSET, item_index, epoch=epoch, offset=event.log_start_offset.offset)
        elif event.HasField("truncation"):
            self._append(codes.TRUNCATION, item_index, epoch=epoch, offset=event.truncation.offset)
        elif event.HasField("partition_removed"):
            moved = int(event.partition_removed.moved)
            self._append(codes.PARTITION_REMOVED, item_index, epoch=epoch, flags=moved)
        elif event.HasField("storage_failed"):
            self._append(codes.STORAGE_FAILED, item_index, epoch=epoch)
        else:
            assert event.HasField("storage_online"), f"an event of no known type: {event.WhichOneof('event')}"
            self._append(codes.STORAGE_ONLINE, item_index, epoch=epoch)

    def _add_leader_append(self, item_index: int, epoch: int, append: event_pb2.LeaderAppend) -> None:
        self._append(
            codes.LEADER_APPEND,
            item_index,
            epoch=epoch,
            offset=append.log_end_offset,
            byte_position=append.byte_position if append.HasField("byte_position") else codes.UNKNOWN,
            segment_base_offset=(
                append.segment_base_offset if append.HasField("segment_base_offset") else codes.UNKNOWN
            ),
        )

    def _add_in_sync_replicas(self, item_index: int, epoch: int, change: event_pb2.InSyncReplicas) -> None:
        sets = ReplicaSets(
            in_sync=list(change.replica_ids),
            proposed=list(change.proposed_replica_ids),
            leader_id=change.leader_id if change.HasField("leader_id") else codes.UNKNOWN,
            min_in_sync_replicas=(
                change.min_in_sync_replicas if change.HasField("min_in_sync_replicas") else codes.UNKNOWN
            ),
        )
        self._append(codes.IN_SYNC_REPLICAS, item_index, epoch=epoch, sets=sets)

    def _add_leadership(self, item_index: int, epoch: int, leadership: event_pb2.Leadership) -> None:
        sets = ReplicaSets(
            replicas=list(leadership.replica_ids),
            leader_id=leadership.leader_id if leadership.HasField("leader_id") else codes.UNKNOWN,
        )
        start = leadership.epoch_start_offset if leadership.HasField("epoch_start_offset") else codes.UNKNOWN
        self._append(
            codes.LEADERSHIP, item_index, epoch=epoch, offset=start, flags=int(leadership.is_leader), sets=sets
        )

    def _append(
        self,
        event_type: int,
        item_index: int,
        *,
        epoch: int = codes.UNKNOWN,
        offset: int = 0,
        replica_id: int = codes.UNKNOWN,
        byte_position: int = codes.UNKNOWN,
        segment_base_offset: int = codes.UNKNOWN,
        log_start_offset: int = codes.UNKNOWN,
        flags: int = 0,
        sets: ReplicaSets | None = None,
    ) -> None:
        batch = self._batch
        batch.types.append(event_type)
        batch.item_indexes.append(item_index)
        batch.offsets.append(offset)
        batch.leader_epochs.append(epoch)
        batch.replica_ids.append(replica_id)
        batch.byte_positions.append(byte_position)
        batch.segment_base_offsets.append(segment_base_offset)
        batch.log_start_offsets.append(log_start_offset)
        batch.flags.append(flags)
        batch.replica_sets.append(sets)
