"""Encodes events: as columns when every event of the message has a column form, as rows otherwise."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import Message

from purgatory.v1 import event_pb2 as wire
from purgatory.v1 import purgatory_service_pb2 as service
from purgatory_client.events import AdvanceReceipt, Event, EventRefusal
from purgatory_client.number_checks import squeeze

_OPTIONAL: Final = ("replica_id", "leader_epoch", "byte_position", "segment_base_offset", "log_start_offset")
"""Columns that are left out when no event has a value in them."""
_NOT_GIVEN: Final = [-1]


def advance_request(events: Sequence[Event]) -> service.AdvanceStreamRequest:
    request = service.AdvanceStreamRequest()
    if any(event.row is not None for event in events):
        for event in events:
            _fill_row(request.rows.events.add(), event)
    else:
        _fill_columns(request.columns, events)
    return request


def receipt_of(message: service.AdvanceReceipt) -> AdvanceReceipt:
    refusals = [EventRefusal(one.index, one.code, one.error_code, one.field, one.message) for one in message.refusals]
    return AdvanceReceipt(list(message.ended), message.unchanged, refusals)


def _fill_columns(columns: wire.EventColumns, events: Sequence[Event]) -> None:
    partitions: dict[tuple[str, int], int] = {}
    keys: dict[str, int] = {}
    indexes = [
        keys.setdefault(event.key, len(keys))
        if event.name is None
        else partitions.setdefault(event.name, len(partitions))
        for event in events
    ]
    for topic, partition in partitions:
        columns.partitions.add(topic=topic, partition=partition)
    if keys:
        columns.keys.extend(keys)
    columns.type.extend([event.type for event in events])
    if any(indexes):
        columns.item_index.extend(indexes)
    columns.offset.extend(squeeze([event.offset for event in events]))
    for field in _OPTIONAL:
        values = squeeze([getattr(event, field) for event in events])
        if values != _NOT_GIVEN:
            getattr(columns, field).extend(values)


def _fill_row(row: wire.Event, event: Event) -> None:
    if event.row is not None:
        row.CopyFrom(event.row)
    elif event.name is None:
        row.key_signalled.key, row.key_signalled.count = event.key, event.offset
    else:
        part_name, fields = _ROWS[event.type]
        part: Message = getattr(row, part_name)
        part.SetInParent()
        for attribute, field in fields.items():
            value = getattr(event, attribute)
            if value >= 0 or not part.DESCRIPTOR.fields_by_name[field].has_presence:
                setattr(part, field, value)
    if event.name is not None:
        row.topic_partition.topic, row.topic_partition.partition = event.name
    if event.leader_epoch >= 0:
        row.leader_epoch = event.leader_epoch


_ROWS: Final[dict[int, tuple[str, dict[str, str]]]] = {
    wire.EVENT_TYPE_LEADER_APPEND: (
        "leader_append",
        {
            "offset": "log_end_offset",
            "byte_position": "byte_position",
            "segment_base_offset": "segment_base_offset",
        },
    ),
    wire.EVENT_TYPE_FOLLOWER_PROGRESS: (
        "follower_progress",
        {"replica_id": "replica_id", "offset": "log_end_offset", "log_start_offset": "log_start_offset"},
    ),
    wire.EVENT_TYPE_HIGH_WATERMARK: ("high_watermark", {"offset": "offset"}),
    wire.EVENT_TYPE_LAST_STABLE_OFFSET: ("last_stable_offset", {"offset": "offset"}),
    wire.EVENT_TYPE_LOG_START_OFFSET: ("log_start_offset", {"offset": "offset"}),
    wire.EVENT_TYPE_TRUNCATION: ("truncation", {"offset": "offset"}),
    wire.EVENT_TYPE_PARTITION_REMOVED: ("partition_removed", {}),
    wire.EVENT_TYPE_STORAGE_FAILED: ("storage_failed", {}),
    wire.EVENT_TYPE_STORAGE_ONLINE: ("storage_online", {}),
}
"""For each type of event on a partition: its message in a row, and where the event's attributes go in that."""
