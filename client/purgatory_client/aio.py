"""`AsyncClient`, the client for asyncio: checks arguments, delegates waits to its session, and makes unary calls."""

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from purgatory.v1 import purgatory_service_pb2
from purgatory_client import batches, waits
from purgatory_client.argument_checks import checked, checked_type, int64, milliseconds, several
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.default_timeouts import DefaultTimeouts
from purgatory_client.errors import InvalidRequest, Unavailable
from purgatory_client.events import AdvanceReceipt, Event, signalled
from purgatory_client.marks import Marks, events_of
from purgatory_client.outbox.ticket import Ticket
from purgatory_client.results import Result, ResultColumns, already_satisfied
from purgatory_client.session.addresses import pause_max
from purgatory_client.session.backoff import Resumption
from purgatory_client.session.channel import ChannelSecurity, Pem, Token
from purgatory_client.session.detached_sessions import CALL_TIMEOUT
from purgatory_client.session.event_sender import EventSender
from purgatory_client.session.event_stream import EventStream
from purgatory_client.session.session_driver import OPEN_TIMEOUT, SessionDriver
from purgatory_client.session.shards import Exchange, send_to_all, shard_refusal
from purgatory_client.sources.position_tokens import Positions, positions_of
from purgatory_client.sources.servers import reached_on
from purgatory_client.sources.source_names import KAFKA, kafka_group
from purgatory_client.unary import SingleCalls, ids_of, shards_of
from purgatory_client.waits import ByPartition, Name, Wait
from purgatory_client.wire.decode_results import arrived_row
from purgatory_client.wire.encode_waits import row_of_wait

DEFAULT_ADDRESS: Final = "127.0.0.1:7440"
WAIT_GRACE: Final = 10.0
"""Seconds past its own timeout that `wait_once` may take to answer."""

_WAITS: Final = """
Cancelling the task (in a blocking client: an interrupt) cancels the wait at the daemon.

Returns:
    How the wait ended; running out of time is an outcome, not an error. For many: the results in the order of the
    operations, once all have ended. One that the daemon refuses is REFUSED there, with its error in `refusals`.

Raises:
    InvalidRequest: The daemon refused it, or it cannot be sent; `field` names the invalid part.
    LimitExceeded: A limit of the daemon or of this client is reached.
    Unavailable: No connection for `give_up_after` seconds, or the daemon accepts no new work.
    SessionTakenOver: Another client has opened the session.
    ClientClosed: The client was closed before or during the call.
    OutboxError: The outbox cannot be read or written.
"""
"""The end of the docstring of every method that waits."""

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(
    build: Callable[P, Entry], answer: type[T]
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[object, None, T]]":
    """Build a method that creates a wait or a batch with a function of `waits` or `batches` and awaits it. The method
    has the same arguments, and they are described only there.

    Not typed `Coroutine[Any, Any, ...]`: mypy then fails to infer `a, b = await gather(..., return_exceptions=True)`.
    """

    async def wait(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = await self._wait(build(*args, **kwargs))
        assert isinstance(result, answer), f"{answer.__name__} expected, got {result!r}"
        return result

    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [own, *signature.parameters.values()]
    wait.__name__ = build.__name__ if answer is Result else f"{build.__name__}_many"
    wait.__qualname__ = f"AsyncClient.{wait.__name__}"
    wait.__doc__ = f"{inspect.getdoc(build)}\n{_WAITS}"
    signature = signature.replace(parameters=parameters, return_annotation=answer.__name__)
    wait.__signature__ = signature  # type: ignore[attr-defined]
    return wait


class AsyncClient(SingleCalls):
    """A client of one daemon, for one event loop. It connects on the first call, in the loop that runs then.

    When that loop is closed, the next call connects again, in its own loop. With an outbox it raises WrongEventLoop.
    Use it in `async with`, or `close` it. It does not survive a fork (docs/client.md, "Closing").

    Args:
        address: The daemon's gRPC address, "host:port". Several daemons of which one serves at a time: "a:7440,b:7440",
            or "dns:///name:7440" for all addresses of a name (docs/client.md, "Several addresses").
        name: Prefix of the session's id, to find it in listings. Ignored with an outbox: its file stores the id.
        pending_max: Maximum number of pending operations in this client; exceeding it raises LimitExceeded.
        give_up_after: Seconds without a connection after which all pending waits raise Unavailable. None: never. With
            an outbox the client never gives up.
        open_timeout: Seconds to wait for the daemon to open the session before the next attempt.
        outbox: Path of a file that preserves waits across a crash of this program (docs/client.md). Created if missing.
        tls: Connect over TLS and trust the public authorities. Implied by the other `tls_` arguments.
        tls_ca: Trust these authorities instead: the path of a PEM file, or its content as bytes.
        tls_certificate: The client certificate, in the same forms. Requires `tls_key`, its private key.
        token: A bearer token; or the path of a file with a token (a `Path`, not a str), or a function that returns one.
            The file is read, or the function called, for each call.
        default_timeouts: Timeouts for waits that have none. None, and for batches: the daemon's default.

    Raises:
        InvalidRequest: The address is not "host:port", or only one of `tls_certificate` and `tls_key` is given.
        OutboxError: The outbox file is in use, damaged, too new or cannot be written.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        name: str = "",
        pending_max: int = 1_000_000,
        give_up_after: float | None = 30.0,
        open_timeout: float = OPEN_TIMEOUT,
        outbox: str | os.PathLike[str] | None = None,
        tls: bool = False,
        tls_ca: Pem | None = None,
        tls_certificate: Pem | None = None,
        tls_key: Pem | None = None,
        token: Token | None = None,
        default_timeouts: DefaultTimeouts | None = None,
    ) -> None:
        int64(pending_max, "pending_max")
        milliseconds(give_up_after, "give_up_after")
        milliseconds(open_timeout, "open_timeout")
        checked_type(default_timeouts, (DefaultTimeouts, type(None)), "default_timeouts", "give DefaultTimeouts(PATH)")
        super().__init__(address, ChannelSecurity(tls, tls_ca, tls_certificate, tls_key, token), give_up_after)
        self._driver: Final = SessionDriver(
            address,
            name=name,
            pending_max=pending_max,
            give_up_after=give_up_after,
            open_timeout=open_timeout,
            outbox=outbox,
            security=self._security,
        )
        self._default_timeouts: Final = default_timeouts
        self._exchanges = [_exchange_of(self)]
        """Send events to a daemon; several once shards are known."""
        self._event_sender = EventSender(self._send_events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self, *, finish: bool = False) -> None:
        """Close the client. Does nothing if it is closed already.

        Pending waits raise ClientClosed and are cancelled at the daemon. With an outbox they stay pending at the
        daemon.

        Args:
            finish: Wait until all pending waits have ended before closing.

        Raises:
            OutboxError: A confirmation could not be written; the next client will recover its wait once more.
        """
        await self._session.close(finish)
        self._closed = True
        await self._event_sender.close()
        await self._close_channel()

    @property
    def session_id(self) -> str:
        """The session's id as the daemon lists it. It changes after the client has given up the connection."""
        return self._driver.session_id

    @property
    def pending(self) -> int:
        """The number of pending operations in this client."""
        return self._driver.pending

    # Waits. Arguments are described at the functions of `waits` and `batches`.

    produce = _waiting(waits.produce, Result)
    processed = _waiting(waits.processed, Result)
    fetch = _waiting(waits.fetch, Result)
    delete_records = _waiting(waits.delete_records, Result)
    signal = _waiting(waits.signal, Result)
    wait = _waiting(waits.wait, Result)
    produce_many = _waiting(batches.produce, ResultColumns)
    fetch_many = _waiting(batches.fetch, ResultColumns)
    delete_records_many = _waiting(batches.delete_records, ResultColumns)
    signal_many = _waiting(batches.signal, ResultColumns)
    wait_many = _waiting(batches.wait, ResultColumns)

    async def caught_up(
        self,
        group: str,
        topics: Collection[str],
        *,
        timeout: float = CALL_TIMEOUT,  # noqa: ASYNC109 - the operation's own
        label: str = KAFKA,
        fail_when_stale: float | None = None,
        as_of: datetime | None = None,
    ) -> Result:
        """Wait until a Kafka consumer group has processed everything that was written before this call.

        A source looks up the end offsets of the topics after the call has begun. The wait then ends when the group
        has nothing left to read below them: transaction markers and aborted, compacted or deleted records do not delay
        it.

        Args:
            group: The consumers' `group.id`.
            topics: The topics.
            timeout: Seconds for the lookup and the wait together.
            label: The cluster's label, if its source was configured with another one than kafka.
            fail_when_stale: As for `produce`.
            as_of: Everything that was written before this time instead; see `ends`.

        Returns:
            How the wait ended.

        Raises:
            Unavailable: The end offsets are not available: no source is attached, or it cannot read the topics.
        """
        began = time.monotonic()
        milliseconds(fail_when_stale, "stale_timeout_ms")  # to check it before the lookup
        names = [kafka_group(group, topic, label) for topic in several(topics, "topics")]
        positions = await self.ends(names, timeout=timeout, as_of=as_of)
        remaining = max(0.0, timeout - (time.monotonic() - began))
        return await self.wait_for(positions, timeout=remaining, fail_when_stale=fail_when_stale)

    async def token(self, offsets: ByPartition) -> str:
        """Encode offsets as a short text that any program can pass to `wait_for`, for example in a header or a message.

        The token contains the leader epochs that the daemon knows. If an offset has since been reassigned to other
        records, the wait fails (error 74) instead of reporting the offset as reached.

        Args:
            offsets: The mark to reach by partition, as for `produce`: 43 for the record at offset 42.
        """
        return (await self.with_epochs(offsets)).token

    async def wait_for(
        self,
        positions: Positions | str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the operation's own
        fail_when_stale: float | None = None,
    ) -> Result:
        """Wait until positions are reached: the result of `ends`, or a token. Return at once if there are no positions.

        Args:
            positions: The offsets to wait for.
            timeout: As for `produce`.
            fail_when_stale: As for `produce`.

        Raises:
            InvalidRequest: The text is not a token, or `positions` is neither of the two.
        """
        chosen = positions_of(positions)
        if not chosen.offsets:
            return already_satisfied()
        result = await self._wait(chosen.wait(timeout=timeout, fail_when_stale=fail_when_stale))
        assert isinstance(result, Result), f"Result expected, got {result!r}"
        return result

    reached_on = reached_on

    async def wait_once(self, wait: Wait) -> Result:
        """Wait with a unary call and no session, for a program that waits once.

        If the connection breaks, the wait is sent again with its remaining timeout; without a timeout, it gets the
        daemon's full default again. A signal wait with `from_now` misses signals that are sent in between.

        Args:
            wait: Made by a function of `purgatory_client.waits`.

        Returns:
            How the wait ended.

        Raises:
            Unavailable: The daemon could not be reached, or not within `give_up_after` seconds after the connection
                broke.
            InvalidRequest: The daemon refused the wait.
            LimitExceeded: A limit of the daemon is reached.
            ClientClosed: The client was closed before or during the call.
        """
        self._prepare(wait)
        request = purgatory_service_pb2.WaitRequest(operation=row_of_wait(wait))
        resumption, began = Resumption(self._give_up_after, pause_max(self.address)), time.monotonic()
        while True:
            limit = None
            elapsed_ms = round((time.monotonic() - began) * 1_000)
            if wait.timeout_ms is not None:
                request.operation.timeout_ms = max(0, wait.timeout_ms - elapsed_ms)
                limit = request.operation.timeout_ms / 1_000 + WAIT_GRACE
            try:
                response = await self._answer(self._stub().Wait(request, timeout=limit))
                break
            except Unavailable as error:
                await resumption.pause(error)
        arrived = arrived_row(response.result)
        if arrived.columns.refusals:
            raise arrived.columns.refusals[0]
        return Result(arrived.columns, 0, 0, wait.unless_count, elapsed_ms)

    # The outbox

    async def submit(self, wait: Wait, tag: str = "") -> Ticket:
        """Submit a wait that outlives this program. Returns once the wait is stored in the outbox.

        The wait and its result stay in the outbox until they are confirmed.

        Args:
            wait: Made by a function of `purgatory_client.waits`.
            tag: Text that lets the caller identify the wait, also after a crash.

        Returns:
            The ticket to get the result with.

        Raises:
            OutboxError: This client has no outbox, or the wait could not be written and was not registered.
            LimitExceeded: `pending_max` is reached.
            ClientClosed: The client is closed.
        """
        self._prepare(wait)
        return await self._session.submit_kept(wait, tag)

    async def submit_many(self, batch: WaitBatch, tag: str = "") -> Ticket:
        """As `submit`, for a batch made by a function of `purgatory_client.batches`, under one tag."""
        checked_type(batch, WaitBatch, "batch", "give a batch of purgatory_client.batches")
        return await self._session.submit_kept(batch, tag)

    async def recovered(self) -> list[Ticket]:
        """The waits that an earlier client left unconfirmed in the outbox, in the order of operation ids. They stay
        pending.

        Raises:
            OutboxError: This client has no outbox, or it cannot be read.
        """
        return list(self._session.outbox().recovered)

    async def result(self, ticket: Ticket) -> Result:
        """Wait for the result of a submitted wait. May be called repeatedly; cancelling this call does not cancel the
        wait.

        Args:
            ticket: From `submit` or `recovered`.

        Raises:
            PurgatoryClientError: The daemon refused the wait; the error is the refusal.
            InvalidRequest: The ticket is for a batch.
            SessionTakenOver: Another client has opened the session.
            ClientClosed: The client was closed before or during the call.
        """
        return await self._session.outbox().result(ticket, Result, "the ticket is for a batch; use result_many")

    async def result_many(self, ticket: Ticket) -> ResultColumns:
        """As `result`, for a ticket from `submit_many`."""
        otherwise = "the ticket is for a single wait; use result"
        return await self._session.outbox().result(ticket, ResultColumns, otherwise)

    async def confirm(self, ticket: Ticket) -> None:
        """Remove a wait and its result from the outbox, after the result has been used.

        Returns once the wait can no longer be recovered. Does nothing if it is already confirmed.

        Args:
            ticket: From `submit`, `submit_many` or `recovered`. Its wait must have ended.

        Raises:
            InvalidRequest: The wait has not ended.
            OutboxError: The confirmation could not be written; it is tried again with the next write.
        """
        await self._session.outbox().confirm(ticket)

    # Events

    async def advance(self, partition: Name, **marks: Unpack[Marks]) -> AdvanceReceipt:
        """Report what happened to one partition.

        Args:
            partition: "orders-3" or ("orders", 3).
            **marks: For example `high_watermark=42`; `Marks` lists all keywords. They are applied in a safe order.

        Returns:
            The number of waits that the events ended.

        Raises:
            EventRefused: An event was refused; the others were applied. StaleEpoch for an old leader epoch.
            InvalidRequest: The marks contradict each other, or are incomplete.
            LimitExceeded: A million events are queued in this client.
            Unavailable: The connection broke. The events may or may not have been applied; they are not sent again.
        """
        receipt = await self._send(events_of(partition, marks))
        return receipt.raise_for_refusals()

    async def advance_many(self, events: Sequence[Event]) -> AdvanceReceipt:
        """Report many events, in order. Refused events are listed in the receipt; other errors are those of `advance`.

        Args:
            events: Made by functions of `purgatory_client.events`.

        Returns:
            The effect of each event.
        """
        return await self._send(events)

    async def signal_key(self, key: str, count: int = 1, *, value: bytes = b"", failed: bool = False) -> AdvanceReceipt:
        """Signal a key. Arguments as for `events.signalled`; returns and raises what `advance` does."""
        receipt = await self._send([signalled(key, count, value=value, failed=failed)])
        return receipt.raise_for_refusals()

    async def extend(
        self,
        operation_ids: Iterable[int],
        timeout: float,  # noqa: ASYNC109 - the operations' own
        *,
        session_id: str | None = None,
    ) -> list[int]:
        """Let pending operations wait for at least `timeout` seconds from now on.

        Args:
            operation_ids: Operation ids in this client's session, or in `session_id`.
            timeout: Seconds, more than 0. An operation that has more time left keeps it.
            session_id: A session other than this client's.

        Returns:
            The ids that were not pending: they had ended already, or were never registered.

        Raises:
            NotFound: The daemon does not know the session.
            InvalidRequest: The timeout is out of range.
        """
        ids = ids_of(operation_ids)
        if not ids:
            return []
        wait_ms = milliseconds(timeout) or 0
        chosen = self.session_id if session_id is None else session_id
        request = checked(purgatory_service_pb2.ExtendRequest, session_id=chosen, operation_ids=ids, timeout_ms=wait_ms)
        response = await self._call_session("Extend", request)
        not_pending = list(response.not_pending_operation_ids)
        if chosen == self.session_id:
            self._session.extended(set(ids).difference(not_pending), wait_ms)
        return not_pending

    # Internals

    def _leave_loop(self) -> None:
        self._driver.leave_loop()
        super()._leave_loop()
        self._exchanges, self._event_sender = [_exchange_of(self)], EventSender(self._send_events)

    @property
    def _session(self) -> SessionDriver:
        self._enter_loop()
        return self._driver

    async def _send(self, events: Sequence[Event]) -> AdvanceReceipt:
        self._enter_loop()
        return await self._event_sender.send(events)

    def _prepare(self, wait: Wait) -> None:
        checked_type(wait, Wait, "wait", "give a wait of purgatory_client.waits")
        if self._default_timeouts is not None:
            self._default_timeouts.fill(wait)

    async def _wait(self, entry: Entry) -> Result | ResultColumns:
        if isinstance(entry, Wait):
            self._prepare(entry)
        future = self._session.submit(entry)
        try:
            return await future
        except asyncio.CancelledError:
            self._session.cancel(entry)
            raise

    async def _send_events(
        self, request: purgatory_service_pb2.AdvanceStreamRequest
    ) -> purgatory_service_pb2.AdvanceReceipt:
        if len(self._exchanges) == 1:
            if self._is_source:
                request.all_shards = True  # every shard has a source of its own
            try:
                return await self._exchanges[0](request)
            except InvalidRequest as error:
                # Nothing was applied.
                if shard_refusal(error.__cause__) is None or len(shards := await shards_of(self)) == 1:
                    raise
            self._exchanges = list(map(_exchange_of, shards))
        return await send_to_all(self._exchanges, request)


def _exchange_of(client: SingleCalls) -> Exchange:
    """The stream of events to the daemon of a client."""
    stream = EventStream(lambda: client._stub().AdvanceStream())  # noqa: SLF001 - of the same package
    return lambda request: client._answer(stream.exchange(request))  # noqa: SLF001
