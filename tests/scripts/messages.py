"""Plain data as messages of the wire, in rows or in columns, and results of the wire as plain data."""

from collections.abc import Iterator, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf import text_format

from purgatory.engine.codes import EVENT_NAMES, KIND_NAMES
from purgatory.engine.completions import FETCHED_COLUMNS, FLOAT64, RESULT_COLUMNS, RESULT_ITEM_COLUMNS
from purgatory.engine.kinds.operation_columns import OPERATION_COLUMNS
from purgatory.v1 import event_pb2, operation_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.engine import plain
from tests.engine.adapter import number_of, operation_batch, value_of

COLUMN_EVENTS: Final = (plain.LEADER_APPEND, plain.FOLLOWER_PROGRESS, plain.HIGH_WATERMARK, plain.LOG_START_OFFSET)
EVENT_FIELDS: Final = {
    "offset": {"offset", "log_end_offset", "epoch_start_offset", "count"},
    "position": {"byte_position"},
    "segment": {"segment_base_offset"},
    "replica_id": {"replica_id"},
    "log_start": {"log_start_offset"},
    "in_sync": {"replica_ids"},
    "proposed": {"proposed_replica_ids"},
    "replicas": {"replica_ids"},
    "leader_id": {"leader_id"},
    "min_in_sync": {"min_in_sync_replicas"},
}
"""For each field of `plain.Event`: the fields of messages that have it. So are the next two."""
OPERATION_FIELDS: Final = {
    "min_bytes": {"min_bytes"},
    "isolation": {"isolation_level"},
    "replica_id": {"replica_id"},
    "follower_reads": {"follower_reads"},
    "any_key": {"any"},
    "from_now": {"from_now"},
    "heartbeat_timeout_ms": {"heartbeat_timeout_ms"},
    "required_terms": {"required_terms"},
}
ITEM_FIELDS: Final = {
    "epoch": {"leader_epoch", "current_leader_epoch"},
    "local_error": {"local_error_code"},
    "max_bytes": {"partition_max_bytes"},
    "last_epoch": {"last_fetched_epoch"},
    "throttled": {"throttled"},
}
OFFSETS: Final = {"required_offset", "fetch_offset", "offset", "required_count"}
"""The fields of items for `plain.Item.offset`, of which -1 is not missing."""
NAMES: Final = {"topic", "topics", "topic_prefix", "key", "keys", "session_id"}
"""Fields of requests with names that a script chooses."""
PASSING: Final = {"next_page_token", "incarnation", "durability", "registered_time", "deadline_time"}
"""Fields of responses that differ from run to run, or from level to level."""
EVENT_FLAGS: Final = {"is_leader": 1, "moved": 1, "failed": 1, "dead": 1, "fenced": 2}
"""Fields of events that are bits of `plain.Event.flag`."""


class Names:
    """The names of one script at a daemon that others use too: with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = prefix

    def partition(self, name: plain.Name) -> operation_pb2.TopicPartition:
        return operation_pb2.TopicPartition(topic=self.prefix + name[0], partition=name[1])

    def renamed(self, name: plain.Name) -> plain.Name:
        return self.prefix + name[0], name[1]

    def own(self, partition: operation_pb2.TopicPartition, key: str) -> plain.Name:
        """The name in the script of a partition, or of a key."""
        if key:
            return key.removeprefix(self.prefix), -1
        return partition.topic.removeprefix(self.prefix), partition.partition

    def add_prefix(self, message: Any) -> None:  # noqa: ANN401 - any message
        """Rename everything in a request that has a name."""
        for field, value in message.ListFields():
            if field.message_type is not None:
                for one in value if field.is_repeated else [value]:
                    self.add_prefix(one)
            elif field.name in NAMES and field.is_repeated:
                value[:] = [self.prefix + one for one in value]
            elif field.name in NAMES:
                setattr(message, field.name, self.prefix + value)

    def operations(self, operations: Sequence[plain.Operation]) -> list[plain.Operation]:
        return [
            one._replace(items=tuple(item._replace(name=self.renamed(item.name)) for item in one.items))
            for one in operations
        ]


# Requests.


def operation_rows(operations: Sequence[plain.Operation], names: Names) -> operation_pb2.OperationRows:
    return operation_pb2.OperationRows(operations=[operation_row(one) for one in names.operations(operations)])


def operation_row(given: plain.Operation) -> operation_pb2.Operation:
    row = operation_pb2.Operation(operation_id=given.operation_id, timeout_ms=given.timeout_ms)
    if given.stale_timeout_ms >= 0:
        row.stale_timeout_ms = given.stale_timeout_ms
    part: Any = getattr(row, KIND_NAMES[given.kind])
    fill(part, given, OPERATION_FIELDS)
    for place, item in enumerate(given.items):
        is_key = item.name[1] < 0
        if given.kind == plain.COMPOSITE:
            term = (part.terms if place < len(given.items) - given.unless_count else part.unless).add()
            fill_item(term.signal if is_key else term.mark, item)
        else:
            fill_item((part.keys if is_key else part.partitions).add(), item)
    return row


def fill_item(part: Any, item: plain.Item) -> None:  # noqa: ANN401 - one of seven messages
    fill(part, item, ITEM_FIELDS)
    (offset,) = fields_of(part) & OFFSETS
    setattr(part, offset, item.offset)
    if item.name[1] < 0:
        part.key = item.name[0]
    else:
        part.topic_partition.topic, part.topic_partition.partition = item.name


def fields_of(part: Any) -> set[str]:  # noqa: ANN401 - any message
    return set(part.DESCRIPTOR.fields_by_name.keys())


def fill(part: Any, given: object, fields: Mapping[str, set[str]]) -> None:  # noqa: ANN401 - any message
    """Set the fields that a message has. -1 is a missing value where the field can be missing."""
    for name, wire_names in fields.items():
        value = getattr(given, name)
        for wire_name in fields_of(part) & wire_names:
            if isinstance(value, tuple):
                getattr(part, wire_name).extend(value)
            elif value != -1 or not part.DESCRIPTOR.fields_by_name[wire_name].has_presence:
                setattr(part, wire_name, value)


def operation_columns(operations: Sequence[plain.Operation], names: Names) -> operation_pb2.OperationColumns:
    """Operations of one kind."""
    batch = operation_batch(names.operations(operations))
    columns = operation_pb2.OperationColumns(
        kind=operations[0].kind,
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=number) for topic, number in batch.partitions],
        keys=batch.keys,
        operation_id=batch.operation_ids,
        timeout_ms=batch.timeouts_ms,
        item_count=batch.item_counts,
        item_index=batch.item_indexes,
    )
    for column in OPERATION_COLUMNS:
        if operations[0].kind in column.kinds:
            getattr(columns, column.wire_name).extend(getattr(batch, column.batch_name))
    return columns


def advance_request(events: Sequence[plain.Event], names: Names, *, as_columns: bool) -> wire.AdvanceRequest:
    """Events as columns if those can express them, or else as rows."""
    if not as_columns or any(event.type not in COLUMN_EVENTS for event in events):
        return wire.AdvanceRequest(rows=event_pb2.EventRows(events=[event_row(event, names) for event in events]))
    return wire.AdvanceRequest(
        columns=event_pb2.EventColumns(
            partitions=[names.partition(event.name) for event in events],
            type=[event.type for event in events],
            item_index=range(len(events)),
            offset=[event.offset for event in events],
            leader_epoch=[event.epoch for event in events],
            replica_id=[event.replica_id for event in events],
            byte_position=[event.position for event in events],
            segment_base_offset=[event.segment for event in events],
            log_start_offset=[event.log_start for event in events],
        )
    )


def event_row(event: plain.Event, names: Names) -> event_pb2.Event:
    row = event_pb2.Event()
    part: Any = getattr(row, EVENT_NAMES[event.type])
    part.SetInParent()
    fill(part, event, EVENT_FIELDS)
    for flag in fields_of(part) & EVENT_FLAGS.keys():
        setattr(part, flag, bool(event.flag & EVENT_FLAGS[flag]))
    if event.type == plain.KEY_SIGNALLED:
        part.key, part.value = names.prefix + event.name[0], value_of(event.value)
        return row
    row.topic_partition.CopyFrom(names.partition(event.name))
    if event.epoch != -1:
        row.leader_epoch = event.epoch
    return row


# Answers.


def ended_of(batch: wire.ResultBatch, names: Names) -> Iterator[plain.Ended]:
    """The results of a message."""
    yield from _ended_of_columns(batch.columns, names)
    for row in batch.rows.results:
        items = tuple(_item_of(item, names) for item in row.partitions)
        yield plain.Ended(0, row.operation_id, row.kind, row.outcome, row.waited_ms, row.lateness_ms, items)


def _item_of(item: result_pb2.PartitionResult, names: Names) -> plain.EndedItem:
    pace = (-1, -1.0)
    if item.HasField("estimated_remaining_ms"):
        pace = (item.estimated_remaining_ms, item.pace_per_second)
    row = plain.EndedItem(
        names.own(item.topic_partition, item.key),
        item.error_code, item.required_offset, item.reached_offset, item.log_start_offset, *pace,
        value=number_of(item.signal_value),
    )  # fmt: skip
    if not item.HasField("fetched"):
        return row
    read = item.fetched
    diverging = (-1, -1)
    if read.HasField("diverging_end_offset"):
        diverging = (read.diverging_epoch, read.diverging_end_offset)
    return row._replace(
        available_bytes=read.available_bytes, high_watermark=read.high_watermark, last_stable=read.last_stable_offset,
        diverging_epoch=diverging[0], diverging_end=diverging[1],
    )  # fmt: skip


def _ended_of_columns(columns: result_pb2.ResultColumns, names: Names) -> Iterator[plain.Ended]:
    count = len(columns.operation_id)
    rows = _expanded(columns, RESULT_COLUMNS, count)
    item_total = sum(rows.item_count)
    items = _expanded(columns, (*RESULT_ITEM_COLUMNS, *FETCHED_COLUMNS), item_total)
    dictionary = [names.own(one, "") for one in columns.partitions]
    dictionary += [names.own(operation_pb2.TopicPartition(), key) for key in columns.keys]
    indexes = list(columns.item_index) or [0]
    indexes = indexes * item_total if len(indexes) == 1 else indexes
    values = [0, *[number_of(value) for value in columns.signal_values]]
    place = 0
    for row in range(count):
        found = []
        for item in range(place, place + rows.item_count[row]):
            given = [getattr(items, column.name)[item] for column in RESULT_ITEM_COLUMNS]
            read = [getattr(items, column.name)[item] for column in FETCHED_COLUMNS]
            value = values[columns.signal_value_index[item]] if columns.signal_value_index else 0
            read = read if columns.kind == plain.FETCH else [-1] * len(read)
            found.append(plain.EndedItem._make([dictionary[indexes[item]], *given, *read, value]))
        place += rows.item_count[row]
        end = (columns.kind, rows.outcome[row], rows.waited_ms[row], rows.lateness_ms[row])
        yield plain.Ended(0, columns.operation_id[row], *end, tuple(found))


def _expanded(columns: result_pb2.ResultColumns, table: Sequence[Any], count: int) -> Any:  # noqa: ANN401 - by name
    """Each column with all of its values: an absent one has the default, and a single value is that of all."""
    found = SimpleNamespace()
    for column in table:
        if column.name != "kind":
            default = column.default if column.type_name == FLOAT64 else int(column.default)
            values = list(getattr(columns, column.name)) or [default]
            setattr(found, column.name, values * count if len(values) == 1 else values)
    return found


def field_texts(message: Any) -> list[str]:  # noqa: ANN401 - any response
    """A response in protobuf's text format: each message of a list on a line of its own."""
    nested: list[str] = []
    clear(message, PASSING)
    for field, value in message.ListFields():
        if field.message_type is not None:
            nested += (
                [f"{field.name} {{ {text_of(one)} }}" for one in value] if field.is_repeated else field_texts(value)
            )
            message.ClearField(field.name)
    return [text for text in (text_of(message), *nested) if text]


def clear(message: Any, names: Set[str]) -> None:  # noqa: ANN401 - any message
    """Clear these fields of a message, and of those in it."""
    for field, value in message.ListFields():
        if field.name in names:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                clear(one, names)


def text_of(message: Any) -> str:  # noqa: ANN401 - any message
    return text_format.MessageToString(message, as_one_line=True, use_short_repeated_primitives=True).strip()


def marks_of(partition: wire.Partition) -> plain.PartitionMarks:
    replicas = tuple(
        (one.replica_id, one.log_end_offset, one.log_start_offset, one.in_sync, one.dead, one.fenced)
        for one in sorted(partition.replicas, key=lambda replica: replica.replica_id)
    )
    fields = [name for name in plain.PartitionMarks._fields if name not in {"in_sync", "replicas"}]
    wire_names = {
        "epoch": "leader_epoch", "log_start": "log_start_offset", "last_stable": "last_stable_offset",
        "log_end": "log_end_offset", "min_in_sync": "min_in_sync_replicas", "unchanged": "unchanged_events",
        "stale": "stale_events",
    }  # fmt: skip
    values: dict[str, Any] = {name: getattr(partition, wire_names.get(name, name)) for name in fields}
    return plain.PartitionMarks(**values, in_sync=tuple(sorted(partition.in_sync_replica_ids)), replicas=replicas)
