"""Events to wire: columns when every event of the message has a column form, rows otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from purgatory.v1 import event_pb2 as wire
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as service
from purgatory_client.columns import squeeze
from purgatory_client.events import AdvanceReceipt, Event, EventRefusal


def advance_request(events: Sequence[Event]) -> service.AdvanceRequest:
    """One message of events, in their order."""
    if any(event.row is not None for event in events):
        return service.AdvanceRequest(rows=wire.EventRows(events=[_row(event) for event in events]))
    return service.AdvanceRequest(columns=_columns(events))


def receipt_of(message: service.AdvanceReceipt) -> AdvanceReceipt:
    """The receipt for one message of events."""
    refusals = [EventRefusal(one.index, one.code, one.error_code, one.field, one.message) for one in message.refusals]
    return AdvanceReceipt(list(message.ended), message.unchanged, refusals)


def _columns(events: Sequence[Event]) -> wire.EventColumns:
    partitions: dict[tuple[str, int], int] = {}
    keys: dict[str, int] = {}
    indexes = [
        keys.setdefault(event.key, len(keys))
        if event.name is None
        else partitions.setdefault(event.name, len(partitions))
        for event in events
    ]
    return wire.EventColumns(
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=number) for topic, number in partitions],
        keys=list(keys),
        type=[event.type for event in events],
        item_index=indexes if any(indexes) else (),
        offset=squeeze([event.offset for event in events]),
        replica_id=_given([event.replica_id for event in events]),
        leader_epoch=_given([event.leader_epoch for event in events]),
        byte_position=_given([event.byte_position for event in events]),
        segment_base_offset=_given([event.segment_base_offset for event in events]),
        log_start_offset=_given([event.log_start_offset for event in events]),
    )


def _given(column: list[int]) -> list[int]:
    """The column, squeezed; empty when no event has a value in it."""
    squeezed = squeeze(column)
    return [] if squeezed == [-1] else squeezed


def _row(event: Event) -> wire.Event:
    row = wire.Event()
    if event.row is not None:
        row.CopyFrom(event.row)
    else:
        _FILL[event.type](row, event)
    if event.name is not None:
        row.topic_partition.topic, row.topic_partition.partition = event.name
    if event.leader_epoch >= 0:
        row.leader_epoch = event.leader_epoch
    return row


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


def _fill_high_watermark(row: wire.Event, event: Event) -> None:
    row.high_watermark.offset = event.offset


def _fill_log_start_offset(row: wire.Event, event: Event) -> None:
    row.log_start_offset.offset = event.offset


def _fill_truncation(row: wire.Event, event: Event) -> None:
    row.truncation.offset = event.offset


def _fill_signal(row: wire.Event, event: Event) -> None:
    row.key_signalled.key = event.key
    row.key_signalled.count = event.offset


_FILL: Final[dict[int, Callable[[wire.Event, Event], None]]] = {
    wire.EVENT_TYPE_LEADER_APPEND: _fill_leader_append,
    wire.EVENT_TYPE_FOLLOWER_PROGRESS: _fill_follower_progress,
    wire.EVENT_TYPE_HIGH_WATERMARK: _fill_high_watermark,
    wire.EVENT_TYPE_LAST_STABLE_OFFSET: _fill_last_stable_offset,
    wire.EVENT_TYPE_LOG_START_OFFSET: _fill_log_start_offset,
    wire.EVENT_TYPE_TRUNCATION: _fill_truncation,
    wire.EVENT_TYPE_PARTITION_REMOVED: lambda row, _: row.partition_removed.SetInParent(),
    wire.EVENT_TYPE_STORAGE_FAILED: lambda row, _: row.storage_failed.SetInParent(),
    wire.EVENT_TYPE_STORAGE_ONLINE: lambda row, _: row.storage_online.SetInParent(),
    wire.EVENT_TYPE_SIGNAL: _fill_signal,
}
