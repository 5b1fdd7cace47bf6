"""Encodes events: as columns when every event of the message has a column form, as rows otherwise."""

from collections.abc import Callable, Sequence
from typing import Final

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
    elif event.type in _OFFSET_ONLY:
        getattr(row, _OFFSET_ONLY[event.type]).offset = event.offset
    else:
        _FILL[event.type](row, event)
    if event.name is not None:
        row.topic_partition.topic, row.topic_partition.partition = event.name
    if event.leader_epoch >= 0:
        row.leader_epoch = event.leader_epoch


def _fill_leader_append(row: wire.Event, event: Event) -> None:
    row.leader_append.log_end_offset = event.offset
    if event.byte_position >= 0:
        row.leader_append.byte_position = event.byte_position
    if event.segment_base_offset >= 0:
        row.leader_append.segment_base_offset = event.segment_base_offset


def _fill_follower_progress(row: wire.Event, event: Event) -> None:
    row.follower_progress.replica_id = event.replica_id
    row.follower_progress.log_end_offset = event.offset
    if event.log_start_offset >= 0:
        row.follower_progress.log_start_offset = event.log_start_offset


def _fill_last_stable_offset(row: wire.Event, event: Event) -> None:
    row.last_stable_offset.SetInParent()
    if event.offset >= 0:
        row.last_stable_offset.offset = event.offset


def _fill_signal(row: wire.Event, event: Event) -> None:
    row.key_signalled.key = event.key
    row.key_signalled.count = event.offset


_OFFSET_ONLY: Final[dict[int, str]] = {
    wire.EVENT_TYPE_HIGH_WATERMARK: "high_watermark",
    wire.EVENT_TYPE_LOG_START_OFFSET: "log_start_offset",
    wire.EVENT_TYPE_TRUNCATION: "truncation",
}
_FILL: Final[dict[int, Callable[[wire.Event, Event], None]]] = {
    wire.EVENT_TYPE_LEADER_APPEND: _fill_leader_append,
    wire.EVENT_TYPE_FOLLOWER_PROGRESS: _fill_follower_progress,
    wire.EVENT_TYPE_LAST_STABLE_OFFSET: _fill_last_stable_offset,
    wire.EVENT_TYPE_PARTITION_REMOVED: lambda row, _: row.partition_removed.SetInParent(),
    wire.EVENT_TYPE_STORAGE_FAILED: lambda row, _: row.storage_failed.SetInParent(),
    wire.EVENT_TYPE_STORAGE_ONLINE: lambda row, _: row.storage_online.SetInParent(),
    wire.EVENT_TYPE_SIGNAL: _fill_signal,
}
