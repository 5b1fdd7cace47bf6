"""Events from the wire to the engine: columns are copied, rows are turned into columns. Pure functions.

The engine checks events one by one. Only what columns cannot say (events with sets of replicas) is refused here: the
type of such an event is set to 0, which the engine refuses, and the refusal found here takes that one's place.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, PartitionName, Refusal, ReplicaSets
from purgatory.v1 import event_pb2

REFUSED_TYPE: Final = 0
ROW_ONLY_TYPES: Final = frozenset({codes.IN_SYNC_REPLICAS, codes.LEADERSHIP, codes.REPLICA_STATE})
DEAD_FLAG: Final = 1
FENCED_FLAG: Final = 2

COLUMN_DEFAULTS: Final = {
    "offsets": 0,
    "leader_epochs": codes.UNKNOWN,
    "replica_ids": codes.UNKNOWN,
    "byte_positions": codes.UNKNOWN,
    "segment_base_offsets": codes.UNKNOWN,
    "log_start_offsets": codes.UNKNOWN,
    "flags": 0,
    "replica_sets": None,
}
"""What the columns of a batch have of an event whose row does not give a value."""

ROW_FIELDS: Final[dict[int, dict[str, str]]] = {
    codes.LEADER_APPEND: {
        "log_end_offset": "offsets",
        "byte_position": "byte_positions",
        "segment_base_offset": "segment_base_offsets",
    },
    codes.FOLLOWER_PROGRESS: {
        "log_end_offset": "offsets",
        "replica_id": "replica_ids",
        "log_start_offset": "log_start_offsets",
    },
    codes.HIGH_WATERMARK: {"offset": "offsets"},
    codes.LAST_STABLE_OFFSET: {"offset": "offsets"},
    codes.LOG_START_OFFSET: {"offset": "offsets"},
    codes.LEADERSHIP: {"epoch_start_offset": "offsets"},
    codes.REPLICA_STATE: {"replica_id": "replica_ids"},
    codes.TRUNCATION: {"offset": "offsets"},
    codes.KEY_SIGNALLED: {"count": "offsets"},
}
"""By type of event: the fields of its row that go into a column as they are. Flags and sets of replicas do not."""


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


class _EventShape:
    """How the rows of a type of event are read, by the table above and the wire's own description."""

    def __init__(self, event_type: int) -> None:
        message: Any = event_pb2.Event.DESCRIPTOR.fields_by_name[codes.EVENT_NAMES[event_type]].message_type
        self.type: Final = event_type
        self.fields: Final = [
            (field, column, bool(message.fields_by_name[field].has_presence))
            for field, column in ROW_FIELDS.get(event_type, {}).items()
        ]
        """(field, column, whether the field may be absent)."""
        self.absent: Final = 1 if event_type == codes.KEY_SIGNALLED else codes.UNKNOWN
        """What an absent field stands for."""


ROW_SHAPES: Final = {name: _EventShape(event_type) for event_type, name in codes.EVENT_NAMES.items()}


def events_from_rows(events: Sequence[event_pb2.Event]) -> IncomingEvents:
    """Rows as full columns. An empty row gets an unknown type, which the engine refuses."""
    count = len(events)
    columns: dict[str, list[Any]] = {name: [default] * count for name, default in COLUMN_DEFAULTS.items()}
    types = [REFUSED_TYPE] * count
    item_indexes = [0] * count
    partitions: dict[PartitionName, int] = {}
    keys: dict[str, int] = {}
    for place, event in enumerate(events):
        name = event.WhichOneof("event")
        if name is None:
            continue
        shape = ROW_SHAPES[name]
        message: Any = getattr(event, name)
        types[place] = shape.type
        if shape.type == codes.KEY_SIGNALLED:
            item_indexes[place] = keys.setdefault(message.key, len(keys))
        else:
            partition = (event.topic_partition.topic, event.topic_partition.partition)
            item_indexes[place] = partitions.setdefault(partition, len(partitions))
            if event.HasField("leader_epoch"):
                columns["leader_epochs"][place] = event.leader_epoch
        for field, column, may_be_absent in shape.fields:
            is_absent = may_be_absent and not message.HasField(field)
            columns[column][place] = shape.absent if is_absent else getattr(message, field)
        if shape.type in FLAGS:
            columns["flags"][place] = FLAGS[shape.type](message)
        if shape.type in REPLICA_SETS:
            columns["replica_sets"][place] = REPLICA_SETS[shape.type](message)
    batch = EventBatch(types, partitions=list(partitions), keys=list(keys), item_indexes=item_indexes, **columns)
    return IncomingEvents(batch, {})


def _optional(message: Any, field: str) -> int:  # noqa: ANN401 - any message that has the field
    return getattr(message, field) if message.HasField(field) else codes.UNKNOWN


def _replica_flags(state: event_pb2.ReplicaState) -> int:
    return (DEAD_FLAG if state.dead else 0) | (FENCED_FLAG if state.fenced else 0)


def _in_sync_replicas(change: event_pb2.InSyncReplicas) -> ReplicaSets:
    return ReplicaSets(
        in_sync=list(change.replica_ids),
        proposed=list(change.proposed_replica_ids),
        leader_id=_optional(change, "leader_id"),
        min_in_sync_replicas=_optional(change, "min_in_sync_replicas"),
    )


def _leadership(change: event_pb2.Leadership) -> ReplicaSets:
    return ReplicaSets(replicas=list(change.replica_ids), leader_id=_optional(change, "leader_id"))


FLAGS: Final[dict[int, Callable[[Any], int]]] = {
    codes.LEADERSHIP: lambda leadership: int(leadership.is_leader),
    codes.PARTITION_REMOVED: lambda removed: int(removed.moved),
    codes.REPLICA_STATE: _replica_flags,
}
REPLICA_SETS: Final[dict[int, Callable[[Any], ReplicaSets]]] = {
    codes.IN_SYNC_REPLICAS: _in_sync_replicas,
    codes.LEADERSHIP: _leadership,
}
