"""Plain data as messages of the wire, in rows or in columns, and results of the wire as plain data."""

from collections.abc import Iterator, Sequence, Set
from typing import Any, Final

from google.protobuf import text_format
from purgatory_client import Outcome, Result
from purgatory_client.wire.decode_results import arrived_batch

from purgatory.engine.codes import EVENT_NAMES, KIND_NAMES
from purgatory.engine.kinds.operation_columns import ITEM, OPERATION_COLUMNS, columns_of
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.engine import plain
from tests.engine.adapter import FIELDS, event_batch, number_of, operation_batch, value_of
from tests.scripts.language import name_of

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
"""For each field of `plain.Event`: the fields of messages that have it."""
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
    part: Any = getattr(row, KIND_NAMES[given.kind])
    part.SetInParent()
    for column in columns_of(given.kind):
        if column.level != ITEM and column.name != "unless_count":
            put(row if column.is_of_all_kinds else part, column.row_name, getattr(given, FIELDS[column.batch_name]))
    for place, item in enumerate(given.items):
        is_key = item.name[1] < 0
        if given.kind == plain.COMPOSITE:
            term = (part.terms if place < len(given.items) - given.unless_count else part.unless).add()
            fill_item(term.signal if is_key else term.mark, given.kind, item)
        else:
            fill_item((part.keys if is_key else part.partitions).add(), given.kind, item)
    return row


def fill_item(part: Any, kind: int, item: plain.Item) -> None:  # noqa: ANN401 - one of seven messages
    for column in columns_of(kind):
        if column.level == ITEM and column.name != "offset":
            put(part, column.row_name, getattr(item, FIELDS[column.batch_name]))
    (offset,) = fields_of(part) & OFFSETS
    setattr(part, offset, item.offset)
    if item.name[1] < 0:
        part.key = item.name[0]
    else:
        part.topic_partition.topic, part.topic_partition.partition = item.name


def fields_of(part: Any) -> set[str]:  # noqa: ANN401 - any message
    return set(part.DESCRIPTOR.fields_by_name.keys())


def put(part: Any, name: str, value: int) -> None:  # noqa: ANN401 - any message
    """Set a field. -1 is a missing value where the field can be missing."""
    if value != -1 or not part.DESCRIPTOR.fields_by_name[name].has_presence:
        setattr(part, name, value)


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
    batch = event_batch(events)
    columns = {column.name: getattr(batch, column.batch_name) for column in EVENT_COLUMNS if column.on_wire}
    return wire.AdvanceRequest(
        columns=event_pb2.EventColumns(
            partitions=[names.partition(name) for name in batch.partitions],
            type=batch.types,
            item_index=batch.item_indexes,
            **columns,
        )
    )


def event_row(event: plain.Event, names: Names) -> event_pb2.Event:
    row = event_pb2.Event()
    part: Any = getattr(row, EVENT_NAMES[event.type])
    part.SetInParent()
    for name, wire_names in EVENT_FIELDS.items():
        value = getattr(event, name)
        for wire_name in fields_of(part) & wire_names:
            if isinstance(value, tuple):
                getattr(part, wire_name).extend(value)
            else:
                put(part, wire_name, value)
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
    """The results of a message, as the client reads them."""
    for arrived in arrived_batch(batch):
        for number, result in zip(arrived.operation_ids, arrived.columns, strict=True):
            refused = plain.Ended(0, number, 0, Outcome.REFUSED, 0, 0, ())
            yield refused if result.outcome == Outcome.REFUSED else ended_row(number, result, names.prefix)


def ended_row(number: int, result: Result, prefix: str = "") -> plain.Ended:
    """A result of the client, without the prefix of its names."""
    items = tuple(_ended_item(one, prefix) for one in result.items)
    times = (round(result.waited * 1_000), round(result.lateness * 1_000))
    return plain.Ended(0, number, result.kind, result.outcome, *times, items)


def _ended_item(item: Any, prefix: str) -> plain.EndedItem:  # noqa: ANN401 - a result of the client
    name, read = name_of(item.name.removeprefix(prefix)), item.fetched
    pace = (-1, -1.0)
    if item.pace_per_second is not None:
        pace = (round(item.estimated_remaining * 1_000), item.pace_per_second)
    marks = (item.required_offset, item.reached_offset, item.log_start_offset)
    row = plain.EndedItem(name, item.error_code, *marks, *pace)._replace(value=number_of(item.signal_value))
    if read is None:
        return row
    diverging = (-1, -1) if read.diverging_epoch is None else (read.diverging_epoch, read.diverging_end_offset)
    return row._replace(
        available_bytes=read.available_bytes, high_watermark=read.high_watermark,
        last_stable=read.last_stable_offset, diverging_epoch=diverging[0], diverging_end=diverging[1],
    )  # fmt: skip


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
    """Remove all fields of these names, at any depth."""
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
