"""Encodes events as columns, or as rows those types that have no column form, in messages of their own."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from purgatory.v1 import event_pb2 as wire
from purgatory.v1 import purgatory_service_pb2 as service
from purgatory_client.argument_checks import squeeze
from purgatory_client.events import AdvanceReceipt, Event, EventRefusal

_OPTIONAL: Final = ("replica_id", "leader_epoch", "byte_position", "segment_base_offset", "log_start_offset")
"""Columns that are left out when no event has a value in them."""
_OPTIONAL_OF: Final = attrgetter(*_OPTIONAL)
_NONE_GIVEN: Final = (-1,) * len(_OPTIONAL)
_NOT_GIVEN: Final = [-1]


def advance_request(events: Sequence[Event]) -> service.AdvanceStreamRequest:
    """A message with these events. All of them have a column form, or none of them has."""
    request = service.AdvanceStreamRequest()
    if len(events) == 1 and events[0].row is None:
        _fill_one(request.columns, events[0])
    elif events[0].row is None:
        _fill_columns(request.columns, events)
    else:
        request.rows.events.extend([event.row for event in events if event.row is not None])
        assert len(request.rows.events) == len(events), "events with a column form in a message of rows"
    return request


def receipt_of(message: service.AdvanceReceipt) -> AdvanceReceipt:
    refusals = [EventRefusal(one.index, one.code, one.error_code, one.field, one.message) for one in message.refusals]
    return AdvanceReceipt(list(message.ended), message.unchanged, refusals)


def _fill_one(columns: wire.EventColumns, event: Event) -> None:
    """The columns of one event, the usual message of a program that reports marks as they move."""
    if event.name is None:
        columns.keys.append(event.key)
    else:
        columns.partitions.add(topic=event.name[0], partition=event.name[1])
    columns.type.append(event.type)
    columns.offset.append(event.offset)
    optional = _OPTIONAL_OF(event)
    for field, value in zip(_OPTIONAL, optional, strict=True) if optional != _NONE_GIVEN else ():
        if value != -1:
            getattr(columns, field).append(value)


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
