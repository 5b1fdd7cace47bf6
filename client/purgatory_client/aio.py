"""The asyncio face: `AsyncClient`. It parses what callers write, and leaves the rest to the session and the stub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

import grpc.aio

from purgatory.v1 import operation_pb2, purgatory_service_pb2
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client import views, waits
from purgatory_client.errors import ClientClosed, InvalidRequest, from_rpc_error
from purgatory_client.events import AdvanceReceipt, Event, signalled
from purgatory_client.many import WaitColumns, key_columns, partition_columns
from purgatory_client.marks import Marks, events_of
from purgatory_client.outbox.outbox_file import OutboxFile
from purgatory_client.outbox.ticket import Ticket
from purgatory_client.partition_names import partition_name
from purgatory_client.results import OperationKind, Result, ResultColumns
from purgatory_client.session.channel import open_channel
from purgatory_client.session.collecting import Collected, Collector
from purgatory_client.session.event_sender import EventSender
from purgatory_client.session.event_stream import EventStream
from purgatory_client.session.registering import Registered, register
from purgatory_client.session.session_driver import SessionDriver
from purgatory_client.waits import ByPartition, Isolation, Name, Wait
from purgatory_client.wire.decode_results import arrived_row
from purgatory_client.wire.encode_waits import row_of_wait

DEFAULT_ADDRESS: Final = "127.0.0.1:7440"
CALL_TIMEOUT: Final = 30.0
"""Seconds a call that only looks or operates may take."""
WAIT_GRACE: Final = 10.0
"""Seconds past its own timeout that a unary wait may take to answer."""

T = TypeVar("T")


class AsyncClient:
    """A client of the daemon at `address` ("host:port"), for one event loop.

    `name` begins the session's id, so that one finds it in listings. `pending_max`: operations that may be pending in
    this client; more raise LimitExceeded. `give_up_after`: seconds without a connection after which everything pending
    raises Unavailable; None: never. Nothing is connected before the first call. Not to be carried over a fork.

    `outbox`: a file that makes a crash of this program safe (docs/client.md). It has the session's id, so `name` does
    not count, and what is in it is not given up, so neither does `give_up_after`. Raises OutboxError.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        name: str = "",
        pending_max: int = 1_000_000,
        give_up_after: float | None = 30.0,
        outbox: str | os.PathLike[str] | None = None,
    ) -> None:
        self.address: Final = address
        self._give_up_after: Final = give_up_after
        self._session: Final = SessionDriver(
            address,
            name=name,
            pending_max=pending_max,
            give_up_after=give_up_after,
            file=None if outbox is None else OutboxFile(outbox),
        )
        self._events: Final = EventStream(lambda: self._stub().AdvanceStream())
        self._advancer: Final = EventSender(self._send_events)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, finish: bool = False) -> None:
        """Leave the daemon. What is pending is cancelled there and raises ClientClosed here.

        `finish`: first let everything pending end by itself. Harmless when closed already.
        """
        await self._session.close(finish)
        self._closed = True
        await self._advancer.close()
        self._events.close()
        if self._channel is not None:
            await self._channel.close()

    @property
    def session_id(self) -> str:
        """The session's id as the daemon lists it. A new one after this client has given up a daemon."""
        return self._session.session_id

    @property
    def pending(self) -> int:
        """How many operations are pending in this client."""
        return self._session.pending

    # Waiting for one operation

    async def produce(
        self,
        offsets: ByPartition,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the daemon keeps the time
        leader_epochs: ByPartition | int | None = None,
        local_error_codes: ByPartition | int | None = None,
    ) -> Result:
        """Wait until the high watermark of each partition has reached its offset (last appended offset + 1).

        `timeout` in seconds; None: the daemon's default. Cancelling the task cancels the operation at the daemon.
        Raises InvalidRequest, LimitExceeded, Unavailable, SessionTakenOver, ClientClosed.
        """
        codes = local_error_codes
        return await self._wait(
            waits.produce(offsets, timeout=timeout, leader_epochs=leader_epochs, local_error_codes=codes)
        )

    async def fetch(
        self,
        offsets: ByPartition,
        *,
        min_bytes: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109 - the daemon keeps the time
        replica_id: int | None = None,
        isolation: Isolation = "read_uncommitted",
        follower_reads: bool = False,
        partition_max_bytes: ByPartition | int | None = None,
        current_leader_epochs: ByPartition | int | None = None,
        last_fetched_epochs: ByPartition | int | None = None,
        throttled: Iterable[Name] = (),
    ) -> Result:
        """Wait until `min_bytes` are readable past the offsets, or one partition gives a reason to answer at once.

        `replica_id`: a follower fetches; None: a consumer. Errors and `timeout` as in `produce`.
        """
        wait = waits.fetch(
            offsets,
            min_bytes=min_bytes,
            timeout=timeout,
            replica_id=replica_id,
            isolation=isolation,
            follower_reads=follower_reads,
            partition_max_bytes=partition_max_bytes,
            current_leader_epochs=current_leader_epochs,
            last_fetched_epochs=last_fetched_epochs,
            throttled=throttled,
        )
        return await self._wait(wait)

    async def delete_records(
        self,
        offsets: ByPartition,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the daemon keeps the time
        local_error_codes: ByPartition | int | None = None,
    ) -> Result:
        """Wait until the low watermark of each partition has reached its offset; -1: the high watermark of now."""
        return await self._wait(waits.delete_records(offsets, timeout=timeout, local_error_codes=local_error_codes))

    async def signal(
        self,
        keys: Mapping[str, int] | Collection[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the daemon keeps the time
        any: bool = False,  # noqa: A002 - the word of the wire
        from_now: bool = False,
    ) -> Result:
        """Wait until all keys (`any`: one) have been signalled: once, or as often as a mapping says.

        `from_now`: signals before the registration do not count. Errors and `timeout` as in `produce`.
        """
        return await self._wait(waits.signal(keys, timeout=timeout, any=any, from_now=from_now))

    async def wait_once(self, wait: Wait) -> Result:
        """One wait (made by purgatory_client.waits) as a single call, with no session: for a program that waits once.

        Nothing is tried again when the connection breaks: Unavailable is raised.
        """
        request = purgatory_service_pb2.WaitRequest(operation=row_of_wait(wait))
        limit = None if wait.timeout_ms is None else wait.timeout_ms / 1_000 + WAIT_GRACE
        response = await self._answer(self._stub().Wait(request, timeout=limit))
        arrived = arrived_row(response.result)
        if arrived.columns.refusals:
            raise arrived.columns.refusals[0]
        return Result(arrived.columns, 0, 0)

    # Waiting for many, in columns

    async def produce_many(
        self,
        partitions: Sequence[Name],
        *,
        offsets: Sequence[int],
        indexes: Sequence[int] | None = None,
        timeouts_ms: Sequence[int] | None = None,
        item_counts: Sequence[int] | None = None,
        leader_epochs: Sequence[int] | None = None,
        local_error_codes: Sequence[int] | None = None,
    ) -> ResultColumns:
        """Many produce waits; returns when all have ended. `partitions` is a dictionary that `indexes` point into.

        A column holds a value for each operation (`timeouts_ms`) or item (the others), one for all, or none.
        `item_counts`: how many items each operation has; None: one each. What the daemon refuses has outcome REFUSED.
        """
        batch = partition_columns(OperationKind.PRODUCE, partitions, indexes, offsets, timeouts_ms, item_counts)
        batch.set_epochs(leader_epochs)
        batch.set_local_error_codes(local_error_codes)
        return await self._wait_many(batch)

    async def fetch_many(
        self,
        partitions: Sequence[Name],
        *,
        offsets: Sequence[int],
        indexes: Sequence[int] | None = None,
        timeouts_ms: Sequence[int] | None = None,
        item_counts: Sequence[int] | None = None,
        min_bytes: Sequence[int] | None = None,
        replica_ids: Sequence[int] | None = None,
        isolation_levels: Sequence[int] | None = None,
        follower_reads: Sequence[bool] | None = None,
        partition_max_bytes: Sequence[int] | None = None,
        current_leader_epochs: Sequence[int] | None = None,
        last_fetched_epochs: Sequence[int] | None = None,
        throttled: Sequence[bool] | None = None,
    ) -> ResultColumns:
        """Many fetches; see `produce_many`. `min_bytes`, `replica_ids` (-1: a consumer), `isolation_levels` (1
        uncommitted, 2 committed) and `follower_reads` have a value for each operation, the others one for each item.
        """
        batch = partition_columns(OperationKind.FETCH, partitions, indexes, offsets, timeouts_ms, item_counts)
        batch.set_epochs(current_leader_epochs, "current_leader_epoch")
        batch.set_fetch(
            min_bytes,
            replica_ids,
            isolation_levels,
            follower_reads,
            partition_max_bytes,
            last_fetched_epochs,
            throttled,
        )
        return await self._wait_many(batch)

    async def delete_records_many(
        self,
        partitions: Sequence[Name],
        *,
        offsets: Sequence[int],
        indexes: Sequence[int] | None = None,
        timeouts_ms: Sequence[int] | None = None,
        item_counts: Sequence[int] | None = None,
        local_error_codes: Sequence[int] | None = None,
    ) -> ResultColumns:
        """Many delete-records waits; see `produce_many`."""
        kind = OperationKind.DELETE_RECORDS
        batch = partition_columns(kind, partitions, indexes, offsets, timeouts_ms, item_counts)
        batch.set_local_error_codes(local_error_codes)
        return await self._wait_many(batch)

    async def signal_many(
        self,
        keys: Sequence[str],
        *,
        indexes: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        timeouts_ms: Sequence[int] | None = None,
        item_counts: Sequence[int] | None = None,
        any: Sequence[bool] | None = None,  # noqa: A002 - the word of the wire
        from_now: Sequence[bool] | None = None,
    ) -> ResultColumns:
        """Many signal waits; see `produce_many`. Without `indexes` and `item_counts`: one wait for each key."""
        places = range(len(keys)) if indexes is None and item_counts is None else indexes
        batch = key_columns(keys, places, counts, timeouts_ms, item_counts)
        batch.set_signal(any, from_now)
        return await self._wait_many(batch)

    # With an outbox

    async def submit(self, wait: Wait, tag: str = "") -> Ticket:
        """A wait (made by purgatory_client.waits) that outlives this program. Returns when it is in the outbox.

        It stays there, with its result, until it is confirmed. `tag` is whatever tells the caller what it was for.
        Raises OutboxUnwritable, LimitExceeded, ClientClosed; nothing is registered then.
        """
        return await self._session.keep(wait, tag)

    async def submit_many(self, batch: WaitColumns, tag: str = "") -> Ticket:
        """As `submit`, for a batch (made by purgatory_client.many) under one tag."""
        return await self._session.keep(batch, tag)

    async def recovered(self) -> list[Ticket]:
        """What an earlier client has left unconfirmed in the outbox, in the order of operation ids; it goes on."""
        return list(self._session.keeper().recovered)

    async def result(self, ticket: Ticket) -> Result:
        """The result of one wait, when there is one; may be asked for again. Cancelling this call cancels nothing else.

        Raises what the daemon refused it with, ClientClosed, SessionTakenOver.
        """
        return await self._session.keeper().result(ticket)

    async def result_many(self, ticket: Ticket) -> ResultColumns:
        """As `result`, for a batch."""
        return await self._session.keeper().result_many(ticket)

    async def confirm(self, ticket: Ticket) -> None:
        """The result has been used: the outbox forgets it. Returns when it is certain not to be recovered again."""
        await self._session.keeper().confirm(ticket)

    # A session apart: registered by one, collected by another

    async def register(self, session_id: str, first_operation_id: int, batch: WaitColumns) -> Registered:
        """Register a batch in a session that is not this client's, and wait for nothing: `results` has its results.

        Operation i gets the id `first_operation_id` + i; ids rise within a session. Tried again until the daemon has
        answered, which is harmless: ids that it knows it passes over. Raises Unavailable after `give_up_after` seconds,
        and whatever the batch as a whole was refused with.
        """
        batch.first_id = first_operation_id
        return await self._answer(register(self._stub(), session_id, batch, self._give_up_after))

    async def results(self, session_id: str) -> AsyncIterator[Collected]:
        """The results of a session that nobody is connected to, in the order in which they came to be, a batch at a
        time; ends when nothing is pending in it any more.

        A batch is acknowledged, and forgotten by the daemon, when the next one is asked for. Whoever has the session
        open is cut off with SessionTakenOver. Raises NotFound when the daemon does not know the session, Unavailable
        after `give_up_after` seconds without a connection, SessionTakenOver.
        """
        collector = Collector(session_id, self._give_up_after)
        while (collected := await self._answer(collector.next(self._stub()))) is not None:
            yield collected

    # What happens

    async def advance(self, partition: Name, **marks: Unpack[Marks]) -> AdvanceReceipt:
        """Tell what happened to one partition, such as `high_watermark=42`; see `Marks` for every keyword.

        Raises EventRefused or StaleEpoch when any of it was refused (the rest was applied), Unavailable,
        InvalidRequest.
        """
        receipt = await self._advancer.advance(events_of(partition, marks))
        return receipt.raise_for_refusals()

    async def advance_many(self, events: Sequence[Event]) -> AdvanceReceipt:
        """Tell many events (made by purgatory_client.events), in order. Refused ones are in the receipt and raise
        nothing.
        """
        return await self._advancer.advance(events)

    async def signal_key(self, key: str, count: int = 1) -> AdvanceReceipt:
        """Signal a key so many times. Raises as `advance` does."""
        receipt = await self._advancer.advance([signalled(key, count)])
        return receipt.raise_for_refusals()

    # Looking and operating

    async def cancel(
        self,
        operation_ids: Iterable[int] | None = None,
        *,
        session_id: str | None = None,
        partition: Name | None = None,
        key: str | None = None,
    ) -> int:
        """Cancel pending operations; returns how many. Say which: ids of this or another session, a whole session, all
        that wait on a partition, or all that wait on a key.
        """
        request = purgatory_service_pb2.CancelRequest()
        if operation_ids is not None or session_id is not None:
            request.session_id = self.session_id if session_id is None else session_id
            request.operation_ids.extend(operation_ids or ())
            if operation_ids is not None and not request.operation_ids:
                return 0
        if partition is not None:
            request.topic_partition.CopyFrom(_topic_partition(partition))
        if key is not None:
            request.key = key
        if [operation_ids is not None or session_id is not None, partition is not None, key is not None].count(
            True
        ) != 1:
            raise InvalidRequest("cancel", "say which: operation ids or a session, a partition, or a key; one of them")
        response = await self._answer(self._stub().Cancel(request, timeout=CALL_TIMEOUT))
        return int(response.cancelled)

    async def operation(self, session_id: str, operation_id: int) -> views.PendingOperation:
        """One pending operation. Raises NotFound when it is not pending."""
        request = purgatory_service_pb2.GetOperationRequest(session_id=session_id, operation_id=operation_id)
        response = await self._answer(self._stub().GetOperation(request, timeout=CALL_TIMEOUT))
        return views.pending_operation(response.operation)

    async def operations(
        self,
        *,
        session_id: str = "",
        kind: OperationKind | None = None,
        partition: Name | None = None,
        key: str = "",
        page_size: int = 1_000,
    ) -> AsyncIterator[views.PendingOperation]:
        """The pending operations that fit all the filters, fetched page by page."""
        request = purgatory_service_pb2.ListOperationsRequest(
            session_id=session_id,
            kind=None if kind is None else kind.value,
            topic_partition=None if partition is None else _topic_partition(partition),
            key=key,
            page_size=page_size,
        )
        while True:
            response = await self._answer(self._stub().ListOperations(request, timeout=CALL_TIMEOUT))
            for operation in response.operations:
                yield views.pending_operation(operation)
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    async def partition(self, partition: Name) -> views.Partition:
        """One partition's marks, replicas and waits. Raises NotFound when the daemon has not heard of it."""
        request = purgatory_service_pb2.GetPartitionRequest(topic_partition=_topic_partition(partition))
        response = await self._answer(self._stub().GetPartition(request, timeout=CALL_TIMEOUT))
        return views.partition(response.partition)

    async def partitions(self, *, prefix: str = "", page_size: int = 1_000) -> AsyncIterator[views.Partition]:
        """The known partitions whose topic begins with `prefix`, fetched page by page."""
        request = purgatory_service_pb2.ListPartitionsRequest(topic_prefix=prefix, page_size=page_size)
        while True:
            response = await self._answer(self._stub().ListPartitions(request, timeout=CALL_TIMEOUT))
            for partition in response.partitions:
                yield views.partition(partition)
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    async def status(self, *, remaining_time: bool = False) -> views.Status:
        """The daemon's counts and version. `remaining_time`: also how much time is left of what is pending; the daemon
        looks at each operation for it.
        """
        request = purgatory_service_pb2.GetStatusRequest(remaining_time=remaining_time)
        return views.status(await self._answer(self._stub().GetStatus(request, timeout=CALL_TIMEOUT)))

    # How it is done

    async def _wait(self, wait: Wait) -> Result:
        future = self._session.submit(wait)
        try:
            return await future
        except asyncio.CancelledError:
            self._session.cancel(wait)
            raise

    async def _wait_many(self, batch: WaitColumns) -> ResultColumns:
        future = self._session.submit_many(batch)
        try:
            return await future
        except asyncio.CancelledError:
            self._session.cancel(batch)
            raise

    async def _send_events(
        self, request: purgatory_service_pb2.AdvanceStreamRequest
    ) -> purgatory_service_pb2.AdvanceReceipt:
        return await self._answer(self._events.exchange(request))

    async def _answer(self, call: Awaitable[T]) -> T:
        """The answer of a unary call. Raises this package's errors instead of gRPC's."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.CancelledError:
            # gRPC raises this also where the channel was closed under a call; nobody has cancelled this task then.
            task = asyncio.current_task()
            if not self._closed or task is None or task.cancelling():
                raise
            raise ClientClosed("the client was closed while this call was waiting") from None

    def _stub(self) -> PurgatoryServiceStub:
        if self._closed:
            raise ClientClosed("the client is closed")
        if self._channel is None:
            self._channel = open_channel(self.address)
        return PurgatoryServiceStub(self._channel)


def _topic_partition(name: Name) -> operation_pb2.TopicPartition:
    topic, partition = partition_name(name)
    return operation_pb2.TopicPartition(topic=topic, partition=partition)
