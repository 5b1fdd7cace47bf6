"""Sends events in the order of the calls. Events submitted while a message is in flight share the next message.

Only one message is in flight, so that the daemon applies events in order, no matter which calls are awaited. Nothing is
sent twice, because a signal would count twice. A message that fails raises in exactly the calls whose events it
contained.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from purgatory.v1 import event_pb2 as wire
from purgatory.v1 import purgatory_service_pb2 as service
from purgatory_client.argument_checks import checked_type, several, squeeze
from purgatory_client.errors import ClientClosed, LimitExceeded, ProtocolError, PurgatoryClientError
from purgatory_client.events import AdvanceReceipt, Event, EventRefusal
from purgatory_client.session.shards import Exchange
from purgatory_client.wire import sizes

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


class _Batch(NamedTuple):
    """Events of one call that fit in a message, and the future of their receipt."""

    events: Sequence[Event]
    future: asyncio.Future[AdvanceReceipt]

    @property
    def in_rows(self) -> bool:
        return self.events[0].row is not None


class EventSender:
    """Sends the events of one client. `exchange` sends a message and returns its receipt, or raises one of this
    package's errors.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Final = exchange
        self._queue: Final[deque[_Batch]] = deque()
        self._queued = 0
        self._task: asyncio.Task[None] | None = None

    async def send(self, events: Sequence[Event]) -> AdvanceReceipt:
        """Send events, in several messages if they do not fit in one. Raises LimitExceeded, Unavailable, ..."""
        events = several(events, "events")
        for event in events:
            checked_type(event, Event, "events", "give events of purgatory_client.events")
        if not events:
            return AdvanceReceipt([], 0, [])
        if self._queued + len(events) > sizes.EVENTS_QUEUED_MAX:
            raise LimitExceeded(
                f"{self._queued} events are waiting to be sent; the limit of this client is {sizes.EVENTS_QUEUED_MAX}"
            )
        loop = asyncio.get_running_loop()
        parts = [_Batch(part, loop.create_future()) for part in _parts(events)]
        self._queue.extend(parts)
        self._queued += len(events)
        # No event can be missed: the task ends in the same step in which it finds the queue empty, so it is done
        # whenever it no longer looks.
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="purgatory events")
        if len(parts) == 1:
            return await parts[0].future
        receipts = await asyncio.gather(*(part.future for part in parts))
        return _joined([len(part.events) for part in parts], receipts)

    async def close(self) -> None:
        """Stop sending. Unanswered calls raise ClientClosed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(list(self._queue), ClientClosed("the client was closed before these events were sent"))
        self._queue.clear()
        self._queued = 0

    async def _run(self) -> None:
        while self._queue:
            # Taken only after the receipt of the previous message, so messages grow under load without a delay when
            # there is none.
            batches = self._take()
            try:
                receipt = await self._exchange(advance_request([event for batch in batches for event in batch.events]))
                self._settle(batches, receipt_of(receipt))
            except PurgatoryClientError as error:
                self._fail(batches, error)
            except asyncio.CancelledError:
                self._fail(batches, ClientClosed("the client was closed while these events were being sent"))
                raise
            except Exception as error:  # noqa: BLE001 - raised in its callers, with its cause
                failed = ProtocolError(f"internal error in this client: {error!r}")
                failed.__cause__ = error
                self._fail(batches, failed)

    def _take(self) -> list[_Batch]:
        """The batches of the next message: as many of the same form as fit."""
        taken: list[_Batch] = []
        count = 0
        # A batch never exceeds the limit (`_parts`), so at least one is taken.
        while self._queue and count + len(self._queue[0].events) <= sizes.EVENTS_PER_MESSAGE_MAX:
            if taken and self._queue[0].in_rows != taken[0].in_rows:
                break
            batch = self._queue.popleft()
            count += len(batch.events)
            taken.append(batch)
        self._queued -= count
        return taken

    @staticmethod
    def _settle(batches: list[_Batch], receipt: AdvanceReceipt) -> None:
        if len(batches) == 1:
            if not batches[0].future.done():
                batches[0].future.set_result(receipt)
            return
        start = 0
        for batch in batches:
            end = start + len(batch.events)
            own = [one for one in receipt.refusals if start <= one.index < end]
            refusals = [replace(one, index=one.index - start) for one in own]
            # The caller may have been cancelled; its events were sent all the same.
            if not batch.future.done():
                # The daemon counts per message, so only a count of 0 can be attributed to each call.
                unchanged = None if receipt.unchanged else 0
                batch.future.set_result(AdvanceReceipt(receipt.ended[start:end], unchanged, refusals))
            start = end

    @staticmethod
    def _fail(batches: list[_Batch], error: PurgatoryClientError) -> None:
        for batch in batches:
            if not batch.future.done():
                batch.future.set_exception(error)


def _parts(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Cut the events of a call where they no longer fit in a message, and where columns and rows meet."""
    if len(events) == 1:
        yield events
        return
    for _, run in groupby(events, key=lambda event: event.row is None):
        part = list(run)
        for start in range(0, len(part), sizes.EVENTS_PER_MESSAGE_MAX):
            yield part[start : start + sizes.EVENTS_PER_MESSAGE_MAX]


def _joined(lengths: Sequence[int], receipts: Sequence[AdvanceReceipt]) -> AdvanceReceipt:
    """The receipt of one call whose events were sent in several messages."""
    ended: list[int] = []
    refusals: list[EventRefusal] = []
    unchanged: int | None = 0
    start = 0
    for length, receipt in zip(lengths, receipts, strict=True):
        ended.extend(receipt.ended)
        refusals.extend(replace(refusal, index=refusal.index + start) for refusal in receipt.refusals)
        unchanged = None if unchanged is None or receipt.unchanged is None else unchanged + receipt.unchanged
        start += length
    return AdvanceReceipt(ended, unchanged, refusals)
