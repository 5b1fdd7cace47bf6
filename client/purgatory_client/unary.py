"""Unary calls to a daemon over one channel: everything that is not part of this client's session."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar, Unpack

import grpc
import grpc.aio

from purgatory.v1 import operation_pb2, purgatory_service_pb2, source_pb2, webhook_pb2
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client import errors, rpc_errors, views
from purgatory_client.argument_checks import check_keywords, checked, checked_type, int64, milliseconds_of, several
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.partition_names import partition_name
from purgatory_client.results import OperationKind, Outcome
from purgatory_client.session.addresses import check_address, pause_max
from purgatory_client.session.backoff import Resumption
from purgatory_client.session.channel import ChannelSecurity, check_process, is_lost, open_channel
from purgatory_client.session.detached_sessions import (
    CALL_TIMEOUT,
    ClosedSession,
    Collected,
    Collector,
    Registered,
    register,
)
from purgatory_client.session.shards import shard_of, shard_refusal
from purgatory_client.sources.position_tokens import Positions
from purgatory_client.sources.source_link import SourceLink
from purgatory_client.waits import ByPartition, Name, Wait

T = TypeVar("T")

# ruff: noqa: SLF001 - of other clients of the same class


class Filters(TypedDict, total=False):
    """Filters of pending operations: by session, kind, and a partition or key that they wait on."""

    session_id: str
    kind: OperationKind | None
    partition: Name | None
    key: str


class SingleCalls:
    """The base of `AsyncClient`. All calls may also raise Unavailable, InvalidRequest and ClientClosed.

    It may be created without an event loop, for example when a module is imported.
    """

    def __init__(self, address: str, security: ChannelSecurity, give_up_after: float | None) -> None:
        check_address(address)
        self.address: Final = address
        self._security: Final = security
        self._give_up_after: Final = give_up_after
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        self._is_source = False
        self._is_alone = False
        """Whether the daemon has said that there is one shard."""
        self._shards: list[SingleCalls] = []
        """A client of each shard, once they are known."""

    @property
    def session_id(self) -> str:
        """The id of this client's own session."""
        raise NotImplementedError

    def _enter_loop(self) -> None:
        """Belong to the running loop. Raises WrongEventLoop if the previous one is not closed."""
        check_process()
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            if not self._loop.is_closed():
                raise errors.WrongEventLoop(
                    "this client is used in another event loop; create an AsyncClient in each, or use the blocking one"
                )
            self._leave_loop()
        self._loop = loop

    def _leave_loop(self) -> None:
        """Forget everything that is bound to the closed loop."""
        # Channels of a closed loop cannot be closed by a call; gRPC closes them when they are dropped.
        self._channel, self._shards = None, []

    async def _close_channel(self) -> None:
        self._closed = True
        for one in self._shards:
            await one._close_channel()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def close_session(self, session_id: str) -> ClosedSession:
        """End a session now: cancel its pending operations and drop its unacknowledged results.

        Args:
            session_id: The session. If a client has it open, its waits raise SessionClosed.

        Returns:
            The numbers of cancelled operations and dropped results.

        Raises:
            NotFound: The daemon does not know the session, or no longer.
            Unavailable: The daemon could not be reached.
        """
        request = checked(purgatory_service_pb2.CloseSessionRequest, session_id=session_id)
        closed = await self._call_session("CloseSession", request)
        return ClosedSession(closed.cancelled, closed.results_dropped)

    # Detached sessions: one client registers, another collects the results.

    async def register(
        self, session_id: str, first_operation_id: int, batch: Entry, *, incarnation: str = ""
    ) -> Registered:
        """Register a batch, or a single wait, in a session other than this client's, without waiting. `results`
        collects the results.

        The call is repeated until the daemon answers. That is safe, because the daemon skips ids that it already knows.

        Args:
            session_id: The session, new or known to the daemon.
            first_operation_id: The id of the first operation; the others follow it. Ids must increase within a session.
            batch: Made by a function of `purgatory_client.batches` or `purgatory_client.waits`.
            incarnation: From the `Registered` of an earlier batch: register only if the session has not been created
                again since then. Empty: not checked, and the session is created if it does not exist.

        Returns:
            The accepted, already known and refused operations, and the session's incarnation.

        Raises:
            NotFound: The session does not exist, or has a different incarnation.
            Unavailable: No answer within `give_up_after` seconds.
            PurgatoryClientError: The daemon refused the whole batch; the error is the refusal.
        """
        if not isinstance(batch, Wait):
            checked_type(batch, WaitBatch, "batch", "give a batch of purgatory_client.batches")
        batch.operation_id = int64(first_operation_id, "first_operation_id")

        async def call(one: SingleCalls) -> Registered:
            return await one._answer(register(one._stub(), session_id, batch, self._give_up_after, incarnation))

        return await self._at_shard(session_id, call)

    async def results(self, session_id: str, *, incarnation: str = "") -> AsyncIterator[Collected]:
        """Collect the results of a session without a connected client, until no operation is pending in it.

        Requesting the next batch acknowledges the previous one, and the daemon then drops it.

        Args:
            session_id: The session. A client that has it open is disconnected with SessionTakenOver.
            incarnation: From `Registered`: collect only results of this incarnation. Empty: of the present one.

        Yields:
            Results in the order in which the operations ended, a batch at a time.

        Raises:
            NotFound: The session does not exist or was created again, possibly between two batches.
            Unavailable: No connection for `give_up_after` seconds.
            SessionTakenOver: Another client opened the session during the call.
        """
        collector = Collector(session_id, self._give_up_after, incarnation)

        async def call(one: SingleCalls) -> Collected | None:
            return await one._answer(collector.next(one._stub()))

        while (collected := await self._at_shard(session_id, call)) is not None:
            yield collected

    def attach_source(self, name: str, topic_prefixes: Iterable[str]) -> SourceLink:
        """Attach a source of marks to the daemon: report its health, and receive the partitions that are waited on
        (docs/sources.md).

        Args:
            name: The source's name in status and metrics. Must not contain secrets.
            topic_prefixes: The source feeds the partitions of all topics that start with one of these.

        Where there are shards, a source attaches to each of them, by a client for each. From then on, this client
        reports events to its own daemon only.

        Returns:
            The link, for use in `async with`.
        """
        self._is_source = True
        prefixes = several(topic_prefixes, "topic_prefixes")
        return SourceLink(self._stub, checked(source_pb2.SourceHello, name=name, topic_prefixes=prefixes))

    async def ends(
        self,
        topics: Collection[str],
        *,
        timeout: float = CALL_TIMEOUT,  # noqa: ASYNC109
        as_of: datetime | None = None,
    ) -> Positions:
        """Look up the current end of marks that sources feed. The lookup starts after this call.

        Args:
            topics: Without partition numbers: "kafka/billing/orders" (the ends of the topic, as marks of the group),
                "kafka/orders", "pg/main/all".
            timeout: Seconds to wait for the sources.
            as_of: Where the logs ended at this time, by the timestamps of their records, instead of the current end. It
                has a time zone and is not in the future.

        Raises:
            Unavailable: A topic has no source at present, or its source cannot read it.
            InvalidRequest: The time is invalid, or a source cannot look up a time (only Kafka's can).
        """
        checked_type(timeout, (int, float), "timeout_ms", "give seconds")
        as_of_ms = milliseconds_of(as_of)
        request = checked(source_pb2.GetSourceEndsRequest, topics=several(topics, "topics"), as_of_ms=as_of_ms)
        response = await self._answer(self._stub().GetSourceEnds(request, timeout=timeout))
        return Positions.of_ends(response.ends)

    async def with_epochs(self, offsets: ByPartition) -> Positions:
        """Offsets together with the leader epochs that the daemon currently knows for their partitions."""
        epochs: dict[Name, int] = {}
        for name in Positions(offsets).offsets:
            with contextlib.suppress(errors.NotFound):
                epochs[name] = (await self.partition(name)).leader_epoch
        return Positions(offsets, {name: epoch for name, epoch in epochs.items() if epoch >= 0})

    async def operation(self, session_id: str, operation_id: int) -> views.PendingOperation:
        """One pending operation. Raises NotFound if it is not pending."""
        request = checked(purgatory_service_pb2.GetOperationRequest, session_id=session_id, operation_id=operation_id)
        response = await self._call_session("GetOperation", request)
        return views.pending_operation(response.operation)

    async def operations(
        self, *, page_size: int = 1_000, **filters: Unpack[Filters]
    ) -> AsyncIterator[views.PendingOperation]:
        """Iterate over the pending operations that match all filters, fetching `page_size` at a time."""
        request = _listing(filters, page_size=page_size)
        async for operation in self._listed("ListOperations", request, "operations"):
            yield views.pending_operation(operation)

    async def ranked_operations(
        self, order: views.OperationOrder, *, limit: int = 100, search: str = "", **filters: Unpack[Filters]
    ) -> views.RankedOperations:
        """The first pending operations in an order, among all that match the filters. The daemon ranks every one of
        them.

        Args:
            order: By remaining time, or by the time waited until now.
            limit: Maximum number of operations, 1 to 1,000.
            search: Only operations that wait on a partition ("orders-3") or key whose name contains this text, ignoring
                case.
            **filters: As for `operations`.
        """
        chosen = checked_type(order, views.OperationOrder, "order", "give an OperationOrder").value
        request = _listing(filters, page_size=limit, order=chosen, search=search)
        response = await self._answer(self._stub().ListOperations(request, timeout=CALL_TIMEOUT))
        return views.RankedOperations(list(map(views.pending_operation, response.operations)), response.matching)

    async def partition(self, partition: Name) -> views.Partition:
        """The marks, replicas and waits of one partition. Raises NotFound if the daemon does not know it."""
        request = checked(purgatory_service_pb2.GetPartitionRequest, topic_partition=topic_partition(partition))
        response = await self._answer(self._stub().GetPartition(request, timeout=CALL_TIMEOUT))
        return views.partition(response.partition)

    async def partitions(self, *, prefix: str = "", page_size: int = 1_000) -> AsyncIterator[views.Partition]:
        """Iterate over the known partitions whose topic begins with `prefix`, fetching `page_size` at a time."""
        request = checked(purgatory_service_pb2.ListPartitionsRequest, topic_prefix=prefix, page_size=page_size)
        async for partition in self._listed("ListPartitions", request, "partitions"):
            yield views.partition(partition)

    async def status(self, *, remaining_time: bool = False) -> views.Status:
        """The daemon's version and counts.

        Args:
            remaining_time: Also return the remaining time of pending operations, for which the daemon scans all of
                them.
        """
        request = checked(purgatory_service_pb2.GetStatusRequest, remaining_time=remaining_time)
        return views.status(await self._answer(self._stub().GetStatus(request, timeout=CALL_TIMEOUT)))

    async def hot_names(self, limit: int = 20) -> list[views.HotName]:
        """The partitions and keys with the most watches, hottest first, among those that this caller may observe.

        Args:
            limit: Maximum number of names, at most 1,000.
        """
        request = checked(purgatory_service_pb2.ListHotNamesRequest, limit=limit)
        response = await self._answer(self._stub().ListHotNames(request, timeout=CALL_TIMEOUT))
        return [views.hot_name(one) for one in response.names]

    async def tail(
        self, *, outcomes: Collection[Outcome] = (), kind: OperationKind | None = None
    ) -> AsyncIterator[views.EndedTogether]:
        """Iterate over all operations as they end, to observe a daemon. This is not a way to receive your own results.

        Includes this client's own operations, and those of others on partitions and keys for which it has the role
        admin. The first item arrives at once and is empty; from then on, nothing is missed except the operations
        counted as left out. If the connection breaks, it is reopened for up to `give_up_after` seconds: another empty
        item follows, and operations that ended in between are missing.

        Args:
            outcomes: Only these outcomes; none: all.
            kind: Only this kind.
        """
        request = purgatory_service_pb2.TailResultsRequest(
            outcomes=[checked_type(one, Outcome, "outcomes", "give Outcomes") for one in several(outcomes, "outcomes")],
            kind=_kind_value(kind),
        )
        resumption = Resumption(self._give_up_after, pause_max(self.address))
        while True:
            call = self._stub().TailResults(request)
            try:
                while (response := await self._answer(call.read())) is not grpc.aio.EOF:
                    yield views.ended(response)
                return
            except errors.Unavailable as error:
                await resumption.pause(error)
            finally:
                call.cancel()

    async def dead_letters(self, *, page_size: int = 100) -> AsyncIterator[views.DeadLetter]:
        """Iterate over results that could not be delivered to their callbacks, oldest first, fetching `page_size` at
        a time.
        """
        request = checked(webhook_pb2.ListDeadLettersRequest, page_size=page_size)
        async for letter in self._listed("ListDeadLetters", request, "dead_letters"):
            yield views.dead_letter(letter)

    async def resend_dead_letters(self, webhook_ids: Collection[str] | None = None) -> views.ResentLetters:
        """Send dead letters to their callbacks again, now.

        Args:
            webhook_ids: The ids of the dead letters; None: all.
        """
        if webhook_ids is not None and not webhook_ids:
            return views.ResentLetters(0)
        chosen = None if webhook_ids is None else several(webhook_ids, "webhook_ids")
        request = checked(webhook_pb2.ResendDeadLettersRequest, webhook_ids=chosen)
        response = await self._answer(self._stub().ResendDeadLetters(request, timeout=CALL_TIMEOUT))
        return views.ResentLetters(response.resent, tuple(response.unknown_webhook_ids))

    async def delete_dead_letters(self, webhook_ids: Collection[str]) -> views.DeletedLetters:
        """Delete dead letters without sending them. Their results are lost.

        Args:
            webhook_ids: The ids of the dead letters, at least one.
        """
        request = checked(webhook_pb2.DeleteDeadLettersRequest, webhook_ids=several(webhook_ids, "webhook_ids"))
        response = await self._answer(self._stub().DeleteDeadLetters(request, timeout=CALL_TIMEOUT))
        return views.DeletedLetters(response.deleted, tuple(response.unknown_webhook_ids))

    async def hand_over(self) -> None:
        """Let the standby of a daemon with a replicated log lead, as before an upgrade. Waits of sessions go on.

        Raises InvalidRequest if no other daemon can lead, because there is no log.
        """
        await self._answer(self._stub().HandOver(purgatory_service_pb2.HandOverRequest(), timeout=CALL_TIMEOUT))

    async def cancel(
        self,
        operation_ids: Iterable[int] | None = None,
        *,
        session_id: str | None = None,
        partition: Name | None = None,
        key: str | None = None,
    ) -> int:
        """Cancel pending operations: by id, or all of a session, on a partition or on a key.

        Args:
            operation_ids: Operation ids in this client's session, or in `session_id`.
            session_id: A session: all its operations, or those in `operation_ids`.
            partition: All operations that wait on this partition.
            key: All operations that wait on this key.

        Returns:
            The number of cancelled operations.

        Raises:
            InvalidRequest: None of these was given, or an unsupported combination.
        """
        given = [operation_ids is not None or session_id is not None, partition is not None, key is not None]
        if given.count(True) != 1:
            raise errors.InvalidRequest(
                "cancel", "give exactly one of: operation ids (or a session), a partition, a key"
            )
        if partition is None and key is None:
            ids = None if operation_ids is None else ids_of(operation_ids)
            if ids == []:
                return 0
            chosen = self.session_id if session_id is None else session_id
            request = checked(purgatory_service_pb2.CancelRequest, session_id=chosen, operation_ids=ids)
            return int((await self._call_session("Cancel", request)).cancelled)
        on = None if partition is None else topic_partition(partition)
        request = checked(purgatory_service_pb2.CancelRequest, topic_partition=on, key=key)
        cancelled = 0
        for one in await shards_of(self):
            cancelled += (await one._answer(one._stub().Cancel(request, timeout=CALL_TIMEOUT))).cancelled
        return cancelled

    async def _listed(self, method: str, request: Any, field: str) -> AsyncIterator[Any]:  # noqa: ANN401 - of three kinds
        """The entries of a listing, which are in this field of its pages."""
        while True:
            page = await self._answer(getattr(self._stub(), method)(request, timeout=CALL_TIMEOUT))
            for one in getattr(page, field):
                yield one
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def _call_session(self, method: str, request: Any) -> Any:  # noqa: ANN401 - messages of several kinds
        """The answer of a unary call that names a session, from its shard."""

        async def call(one: SingleCalls) -> Any:  # noqa: ANN401 - as above
            return await one._answer(getattr(one._stub(), method)(request, timeout=CALL_TIMEOUT))

        return await self._at_shard(request.session_id, call)

    async def _at_shard(self, session_id: str, call: "Callable[[SingleCalls], Awaitable[T]]") -> T:
        """Make a call that names a session at its shard. It is repeated only if another shard has refused it."""
        if not self._shards:
            try:
                return await call(self)
            except errors.InvalidRequest as error:
                if shard_refusal(error.__cause__) is None or len(await shards_of(self)) == 1:
                    raise
        return await call(self._shards[shard_of(session_id, len(self._shards))])

    async def _answer(self, call: Awaitable[T]) -> T:
        """The answer of a unary call. Raises this package's errors instead of gRPC's."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            # Not kept in a local: the error refers to this frame, and the cycle would keep the connection open.
            raise rpc_errors.from_rpc_error(error, self.address) from error
        except asyncio.CancelledError:
            # gRPC also raises this when the channel is closed during a call; in that case this task was not cancelled.
            task = asyncio.current_task()
            if not self._closed or task is None or task.cancelling():
                raise
            raise errors.ClientClosed("the client was closed while this call was waiting") from None

    def _stub(self) -> PurgatoryServiceStub:
        if self._closed:
            raise errors.ClientClosed("the client is closed")
        self._enter_loop()
        if self._channel is None or is_lost(self._channel):
            self._channel = open_channel(self.address, self._security)
        return PurgatoryServiceStub(self._channel)


async def shards_of(client: SingleCalls) -> Sequence[SingleCalls]:
    """A client of each shard, in order, for calls that cover one of them; where there is one shard, the client itself.
    They are closed with it.
    """
    if not client._shards and not client._is_alone:
        request = purgatory_service_pb2.GetTopologyRequest()
        try:
            found = list((await client._answer(client._stub().GetTopology(request, timeout=CALL_TIMEOUT))).targets)
        except errors.PurgatoryClientError as error:
            cause = error.__cause__
            if not isinstance(cause, grpc.aio.AioRpcError) or cause.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            found = []
        client._is_alone = len(found) < 2
        if not client._is_alone:
            client._shards = [SingleCalls(target, client._security, client._give_up_after) for target in found]
    return client._shards or [client]


def topic_partition(name: Name) -> operation_pb2.TopicPartition:
    topic, partition = partition_name(name)
    return operation_pb2.TopicPartition(topic=topic, partition=partition)


def ids_of(operation_ids: Iterable[int]) -> list[int]:
    """Operation ids as a list. Raises InvalidRequest for one that is not in a list, or not an integer."""
    return [int64(one, "operation_ids") for one in several(operation_ids, "operation_ids")]


def _kind_value(kind: OperationKind | None) -> int | None:
    return None if kind is None else checked_type(kind, OperationKind, "kind", "give an OperationKind").value


def _listing(filters: Filters, **others: Any) -> purgatory_service_pb2.ListOperationsRequest:  # noqa: ANN401 - fields
    check_keywords("operations", filters, Filters.__optional_keys__)
    kind, partition = filters.get("kind"), filters.get("partition")
    return checked(
        purgatory_service_pb2.ListOperationsRequest,
        session_id=filters.get("session_id", ""),
        kind=_kind_value(kind),
        topic_partition=None if partition is None else topic_partition(partition),
        key=filters.get("key", ""),
        **others,
    )
