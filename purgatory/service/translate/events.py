"""Decoding of events, part by part: columns are copied, rows become columns. Pure functions.

The engine checks each event. Only events that columns cannot express (with sets of replicas) are refused here: their
type is set to 0, which the engine refuses, and the refusal from here replaces the engine's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, PartitionName, Receipt, Refusal, ReplicaSets
from purgatory.engine.columns import check_length
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.marks.event_checks import REPLICAS_MAX
from purgatory.engine.marks.event_columns import EVENT_COLUMNS, row_fields
from purgatory.engine.marks.signals import DECIDED_FLAG, FAILED_FLAG
from purgatory.service.errors import unreadable_batch
from purgatory.service.translate import batch_limits
from purgatory.service.translate.parts import Dictionary, given_columns, has_columns, part_of
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

REFUSED_TYPE: Final = 0
ROW_ONLY_TYPES: Final = frozenset({codes.IN_SYNC_REPLICAS, codes.LEADERSHIP, codes.REPLICA_STATE})
DEAD_FLAG: Final = 1
FENCED_FLAG: Final = 2

IDS_PER_ROW_COST: Final = 4
"""Replica ids that cost as much as a row."""

ALL_COLUMNS: Final = {"item_index": "item_indexes"} | {
    column.name: column.batch_name for column in EVENT_COLUMNS if column.on_wire
}
"""Columns with a value for each event: the wire field, and the attribute of `EventBatch`."""

COPIED: Final = {**ALL_COLUMNS, "keys": "keys"}


class IncomingEvents:
    """A part of a batch of events, and the refusals found while decoding it, by index in the part.

    `first` is the index of its first event in the caller's batch.
    """

    def __init__(
        self, batch: EventBatch, refusals: dict[int, Refusal], first: int = 0, *, is_last: bool = True
    ) -> None:
        self.batch: Final = batch
        self.refusals: Final = refusals
        self.first: Final = first
        self.is_last: Final = is_last
        self.done = Receipt()
        """The outcome so far."""

    def __len__(self) -> int:
        return len(self.batch.types)

    def explain(self, refusal: Refusal) -> Refusal:
        """Replace the engine's refusal by the one from decoding if there is one, because that states the reason.

        The index of the returned refusal is the one in the caller's batch.
        """
        known = self.refusals.get(refusal.index, refusal)
        if self.first == 0:
            return known
        return Refusal(self.first + known.index, known.code, known.field, known.message, known.error_code)


def event_parts(request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> Iterator[IncomingEvents]:
    """Split a batch of events into parts, each translated on demand.

    Raises:
        BatchRejected: The batch is unreadable. Raised at once, not by the iterator.
    """
    if has_columns(request, "type", "events", batch_limits.EVENTS_MAX):
        return events_from_columns(request.columns)
    return events_from_rows(request.rows.events)


def events_from_columns(columns: event_pb2.EventColumns) -> Iterator[IncomingEvents]:
    """Split a batch of columns into parts and copy them.

    Raises:
        BatchRejected: The batch is unreadable. Raised at once, not by the iterator.
    """
    given, longest = given_columns(columns)
    if longest <= sizes.VALUES_PER_PART:
        types: list[int] = given.pop("type", [])[:]
        names = [(name.topic, name.partition) for name in given.pop("partitions", ())]
        batch = EventBatch(types, partitions=names, **{COPIED[field]: values[:] for field, values in given.items()})
        return iter([IncomingEvents(batch, _refuse_row_only(types))])
    try:
        for field in ALL_COLUMNS:
            check_length(field, len(getattr(columns, field)), len(columns.type))
    except InvalidBatch as error:
        raise unreadable_batch(f"columns.{error.field}", error.message) from None
    return _parts_of_columns(columns)


def _parts_of_columns(columns: event_pb2.EventColumns) -> Iterator[IncomingEvents]:
    rows = len(columns.type)
    partitions = Dictionary[PartitionName](columns.partitions, lambda name: (name.topic, name.partition))
    keys = Dictionary[str](columns.keys, str)
    for start in range(0, max(rows, 1), sizes.VALUES_PER_PART):
        stop = min(start + sizes.VALUES_PER_PART, rows)
        types: list[int] = columns.type[start:stop]
        values = {name: part_of(getattr(columns, field), start, stop) for field, name in ALL_COLUMNS.items()}
        names, words, values["item_indexes"] = _names_of(types, values["item_indexes"], partitions, keys)
        batch = EventBatch(types, partitions=names, keys=words, **values)
        yield IncomingEvents(batch, _refuse_row_only(types), start, is_last=stop == rows)


def _names_of(
    types: list[int], places: list[int], partitions: Dictionary[PartitionName], keys: Dictionary[str]
) -> tuple[list[PartitionName], list[str], list[int]]:
    """Both dictionaries of a part, and the places in them: by the type of its event a place means a key or a partition,
    so each is looked for in its own dictionary only.
    """
    signals = types.count(codes.KEY_SIGNALLED)
    if signals == 0:
        names, places = partitions.part(places)
        return names, [], places
    if signals == len(types):
        words, places = keys.part(places)
        return [], words, places
    if len(places) < len(types):
        places = (places or [0]) * len(types)
    are_keys = [event_type == codes.KEY_SIGNALLED for event_type in types]
    words, of_keys = keys.part([place for place, is_key in zip(places, are_keys, strict=True) if is_key])
    names, of_names = partitions.part([place for place, is_key in zip(places, are_keys, strict=True) if not is_key])
    key_places, name_places = iter(of_keys), iter(of_names)
    return names, words, [next(key_places) if is_key else next(name_places) for is_key in are_keys]


def _refuse_row_only(types: list[int]) -> dict[int, Refusal]:
    """Refuse events that columns cannot express, by index. Their types are set to `REFUSED_TYPE`."""
    refusals: dict[int, Refusal] = {}
    if ROW_ONLY_TYPES.isdisjoint(types):
        return refusals
    for index, event_type in enumerate(types):
        if event_type in ROW_ONLY_TYPES:
            message = f"{codes.EVENT_NAMES[event_type]} events can only be sent as rows"
            refusals[index] = Refusal(index, codes.INVALID_ARGUMENT, "type", message)
            types[index] = REFUSED_TYPE
    return refusals


class _EventShape:
    """The row fields of an event type, from the table of event columns and the message descriptors."""

    def __init__(self, event_type: int) -> None:
        message: Any = event_pb2.Event.DESCRIPTOR.fields_by_name[codes.EVENT_NAMES[event_type]].message_type
        self.type: Final = event_type
        self.fields: Final = [
            (field, column.batch_name, bool(message.fields_by_name[field].has_presence))
            for field, column in row_fields(event_type).items()
        ]
        """(field, column, whether the field may be absent)."""
        self.absent: Final = 1 if event_type == codes.KEY_SIGNALLED else codes.UNKNOWN
        """Value of an absent field."""


ROW_SHAPES: Final = {name: _EventShape(event_type) for event_type, name in codes.EVENT_NAMES.items()}


def events_from_rows(events: Sequence[event_pb2.Event]) -> Iterator[IncomingEvents]:
    """Convert rows to columns, in parts. An empty row gets an unknown type, which the engine refuses."""
    start = 0
    while True:
        stop = _row_stop(events, start)
        yield _events_of_rows(events[start:stop], start, is_last=stop == len(events))
        if stop == len(events):
            return
        start = stop


def _row_stop(events: Sequence[event_pb2.Event], start: int) -> int:
    cost = 0
    stop = start
    while stop < len(events) and cost < sizes.ROWS_COST_MAX:
        event = events[stop]
        name = event.WhichOneof("event")
        cost += 1
        if name is not None and ROW_SHAPES[name].type in REPLICA_SETS:
            cost += sum(map(len, _replica_lists(getattr(event, name)).values())) // IDS_PER_ROW_COST
        stop += 1
    return stop


def _events_of_rows(events: Sequence[event_pb2.Event], start: int, *, is_last: bool) -> IncomingEvents:
    count = len(events)
    columns: dict[str, list[Any]] = {column.batch_name: [column.default] * count for column in EVENT_COLUMNS}
    columns["replica_sets"] = [None] * count
    types = [REFUSED_TYPE] * count
    item_indexes = [0] * count
    partitions: dict[PartitionName, int] = {}
    keys: dict[str, int] = {}
    refusals: dict[int, Refusal] = {}
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
        if shape.type == codes.KEY_SIGNALLED and message.value:
            values = columns.setdefault("values", [b""] * count)
            values[place] = message.value
        if shape.type == codes.KEY_SIGNALLED and message.HasField("decision"):
            columns["segment_base_offsets"][place] = message.decision.value_at
            columns["log_start_offsets"][place] = message.decision.failed_at
        if shape.type in REPLICA_SETS:
            refusal = _too_many_replicas(place, name, message)
            if refusal is not None:
                refusals[place], types[place] = refusal, REFUSED_TYPE
                continue
            columns["replica_sets"][place] = REPLICA_SETS[shape.type](message)
    batch = EventBatch(types, partitions=list(partitions), keys=list(keys), item_indexes=item_indexes, **columns)
    return IncomingEvents(batch, refusals, start, is_last=is_last)


def _replica_lists(message: Any) -> dict[str, Sequence[int]]:  # noqa: ANN401 - either of two messages
    names = ("replica_ids", "proposed_replica_ids")
    return {name: getattr(message, name) for name in names if hasattr(message, name)}


def _too_many_replicas(place: int, name: str, message: Any) -> Refusal | None:  # noqa: ANN401 - either of two messages
    """Refuse long lists before copying them. The engine would refuse them as well."""
    for field, ids in _replica_lists(message).items():
        if len(ids) > REPLICAS_MAX:
            said = f"{len(ids)} ids are over the limit of {REPLICAS_MAX}"
            return Refusal(place, codes.INVALID_ARGUMENT, f"{name}.{field}", said)
    return None


def _optional(message: Any, field: str) -> int:  # noqa: ANN401 - any message that has the field
    return getattr(message, field) if message.HasField(field) else codes.UNKNOWN


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
    codes.REPLICA_STATE: lambda state: DEAD_FLAG * state.dead | FENCED_FLAG * state.fenced,
    codes.KEY_SIGNALLED: lambda signalled: (
        FAILED_FLAG * signalled.failed | DECIDED_FLAG * signalled.HasField("decision")
    ),
}
REPLICA_SETS: Final[dict[int, Callable[[Any], ReplicaSets]]] = {
    codes.IN_SYNC_REPLICAS: _in_sync_replicas,
    codes.LEADERSHIP: _leadership,
}
