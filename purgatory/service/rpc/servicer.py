"""The gRPC methods: translate, call the host, stream. They contain no rules.

Methods raise `RpcError`, which `handlers.add_to_server` turns into a status. It also handles undecodable requests.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from purgatory import sizes
from purgatory.service.access.roles import ADMIN, OBSERVE
from purgatory.service.errors import BatchRejected, check_range, from_refusal, invalid_argument, quoted, unavailable
from purgatory.service.host import Host
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.event_calls import advance_durably, serve_events
from purgatory.service.rpc.handlers import Requests, uncancelled
from purgatory.service.rpc.inspection_calls import InspectionCalls
from purgatory.service.rpc.session_requests import cancel, extend, register, serve_requests
from purgatory.service.rpc.source_calls import serve_source, source_ends
from purgatory.service.sessions import session as sessions
from purgatory.service.sessions.result_stream import ResultStream
from purgatory.service.sessions.session import NO_CALLBACKS, Callbacks
from purgatory.service.translate import batch_limits, views
from purgatory.service.translate.operations import NO_CONDITION, run_from_row
from purgatory.service.translate.result_slices import ResultSlice
from purgatory.service.translate.results import fill_row
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import source_pb2 as source_wire
from purgatory.v1.operation_pb2 import Operation

# ruff: noqa: N802 - methods have the names of the calls

HOT_NAMES_MAX: Final = 1_000
HOT_NAMES_DEFAULT: Final = 20
COALESCED_S: Final = 0.1
"""Operations that end within this time are sent to an observer in one message, seconds."""
SIGN_OF_LIFE_S: Final = 10.0


class PurgatoryServicer(InspectionCalls):
    """The service of proto/purgatory/v1 over one host."""

    def __init__(
        self,
        host: Host,
        callbacks: Callbacks = NO_CALLBACKS,
        status_line: Callable[[], str] = lambda: "",
        message_bytes_max: int = 4_194_304,
    ) -> None:
        """`status_line` returns what extensions add to the status; `message_bytes_max` is the largest message that the
        servers calling this accept.
        """
        super().__init__(host, callbacks, status_line)
        self._message_bytes_max: Final = message_bytes_max

    # Waiting.

    async def Wait(self, request: wire.WaitRequest, call: Call) -> wire.WaitResponse:
        """Register one operation and answer when it ends. If the caller disconnects, the operation is cancelled."""
        if not request.HasField("operation"):
            raise invalid_argument("operation", "is not set")
        watched = self._host.holds.of("Wait")
        with self._host.unary_wait(call.account) as (operation_id, future):
            with watched:
                self._register_unary_wait(request.operation, operation_id, call)
                # The id in the engine is the daemon's own. The caller gets its number back in the result.
                callers_id = request.operation.operation_id
                if future.done():
                    return _wait_response(future.result(), callers_id)
            # After the registration, which may fail: then there is no wait to check.
            self._host.waiting_callers.add(future, call.recheck)
            del request  # thousands of calls wait here, and each keeps everything that its variables refer to
            part = await future
        with watched:
            return _wait_response(part, callers_id)

    async def Session(self, requests: Requests, call: Call) -> None:
        """Receive registrations, cancels and acknowledgements, and send receipts and results, until either side ends
        it.
        """
        # By `anext` and not `read`: this task is cancelled when the client disconnects, and a cancelled read leaks
        # memory in gRPC.
        first = await anext(requests, None)
        if first is None or not first.HasField("open"):
            raise invalid_argument("open", "must be the first message of a session stream")
        # A daemon that was replaced and does not know it must not answer that the session is new.
        await self._host.journal.confirmed()
        stream = self._connect(call, wire.SessionResponse, first.open, expects_heartbeats=True)
        stream.reader = asyncio.create_task(
            serve_requests(self._host, requests, stream, call.turn), name="session reader"
        )
        await self._write(stream, call)

    async def Register(self, request: wire.RegisterRequest, call: Call) -> wire.RegisterResponse:
        """Register a batch in a session, which is created on first use."""
        if request.callback_url:
            # Before the session is opened: a URL that is refused must not leave an empty session behind.
            self._callbacks.check_url(request.callback_url)
        session = self._open_session(call, request.session_id, request.incarnation)[0]
        self._callbacks.attach(session, request.callback_url)
        # Before anything is registered: the session could be dropped early otherwise, see `Session.has_unary_callers`.
        session.has_unary_callers = True
        try:
            response = wire.RegisterResponse(receipt=await register(self._host, session, request.batch, call.turn))
        except BatchRejected as error:
            raise from_refusal(error.refusal, "batch", error.retry_after_ms) from None
        finally:
            self._callbacks.detach_if_finished(session)
        await self._host.journal.durable()
        response.incarnation = session.incarnation
        return response

    async def StreamResults(self, request: wire.StreamResultsRequest, call: Call) -> None:
        await self._host.journal.confirmed()
        await self._write(self._connect(call, wire.StreamResultsResponse, request, expects_heartbeats=False), call)

    async def Acknowledge(self, request: wire.AcknowledgeRequest, call: Call) -> wire.AcknowledgeResponse:
        session = self._host.sessions.get(request.session_id, call.account, request.incarnation)
        _check_read_by_clients(session)
        session.has_unary_callers = True
        self._host.sessions.touch(session, self._host.time.now_ms())
        self._host.acknowledge(session, request.sequence)
        self._host.journal.changed(session)  # the answer to this call waits for durability, which causes a commit
        await self._host.journal.durable()
        return wire.AcknowledgeResponse()

    async def CloseSession(self, request: wire.CloseSessionRequest, call: Call) -> wire.CloseSessionResponse:
        """End a session now: cancel its pending operations and drop its unacknowledged results."""
        session = self._host.sessions.get(request.session_id, call.account)
        cancelled, results_dropped = self._host.close_session(session)
        await self._host.journal.durable()
        return wire.CloseSessionResponse(cancelled=cancelled, results_dropped=results_dropped)

    # Events.

    async def Advance(self, request: wire.AdvanceRequest, call: Call) -> wire.AdvanceResponse:
        """Apply a batch of events. The receipt states how many operations each event ended."""
        return wire.AdvanceResponse(receipt=await advance_durably(self._host, request, call))

    async def AdvanceStream(self, requests: Requests, call: Call) -> None:
        """`Advance` for each message of a stream, answered in order."""
        await uncancelled(serve_events(self._host, requests, call))

    # For observers.

    async def ListHotNames(self, request: wire.ListHotNamesRequest, call: Call) -> wire.ListHotNamesResponse:
        """Return the names with the most watch entries among those that the caller may observe."""
        host = self._host
        host.gate.check_answer(call.account)
        if request.limit < 0:
            raise invalid_argument("limit", f"must be 0 or greater, not {request.limit}")
        limit = min(request.limit, HOT_NAMES_MAX) if request.limit else HOT_NAMES_DEFAULT
        topics, keys = call.account.grants.on_topics(OBSERVE), call.account.grants.on_keys(OBSERVE)
        hottest: list[tuple[int, tuple[str, int]]] = []
        watched, place = host.holds.of("ListHotNames"), 0
        while place >= 0:
            if place:
                await call.turn()
            with watched:
                # Later slices return fewer names, because they must exceed the ones found so far.
                above = hottest[-1][0] if len(hottest) == limit else 0
                found, place = host.engine.inspection.hottest(place, sizes.HOT_NAMES_PER_SLICE, above)
                seen = [one for one in found if one[1][0] in (topics if one[1][1] >= 0 else keys)]
                hottest = heapq.nlargest(limit, hottest + seen)
        return views.hot_names_response(hottest)

    async def TailResults(self, request: wire.TailResultsRequest, call: Call) -> None:
        """Stream the results of ended operations until the caller disconnects."""
        if request.kind and not views.is_known_kind(request.kind):
            raise invalid_argument("kind", f"is not a known kind of operation: {request.kind}")
        for place, outcome in enumerate(request.outcomes):
            if not views.is_known_outcome(outcome):
                raise invalid_argument(f"outcomes[{place}]", f"is not an outcome of a wait: {outcome}")
        rows_max = sizes.TAIL_ROWS_PER_MESSAGE
        follower = self._host.tail.follow(call.account, request.outcomes, request.kind)
        try:
            while True:
                # Before each message: a stream may be open for days, and the role may have been withdrawn.
                call.recheck()
                operations, left_out = follower.take()
                while len(operations) > rows_max:
                    await call.context.write(wire.TailResultsResponse(operations=operations[:rows_max]))
                    del operations[:rows_max]
                await call.context.write(wire.TailResultsResponse(operations=operations, left_out=left_out))
                try:
                    async with asyncio.timeout(SIGN_OF_LIFE_S):
                        await follower.woken.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(COALESCED_S)
        finally:
            self._host.tail.unfollow(follower)

    # Sources.

    async def AttachSource(self, requests: Requests, call: Call) -> None:
        await serve_source(self._host, requests, call)

    async def GetSourceEnds(
        self, request: source_wire.GetSourceEndsRequest, call: Call
    ) -> source_wire.GetSourceEndsResponse:
        return await source_ends(self._host, request, call)

    # Cancels and extensions.

    async def Cancel(self, request: wire.CancelRequest, call: Call) -> wire.CancelResponse:
        """Cancel pending operations: some or all of a session, or all that wait on a partition or key."""
        response = await self._cancel(request, call)
        await self._host.journal.durable()
        return response

    async def _cancel(self, request: wire.CancelRequest, call: Call) -> wire.CancelResponse:
        chosen = [bool(request.session_id), request.HasField("topic_partition"), bool(request.key)]
        if sum(chosen) != 1:
            raise invalid_argument("session_id", "set exactly one of session_id, topic_partition and key")
        if request.operation_ids and not request.session_id:
            raise invalid_argument("operation_ids", "are ids of a session: set session_id")
        if request.HasField("topic_partition"):
            name = views.partition_name(request.topic_partition)
            self._check_admin(call, name[0] in call.account.grants.on_topics(ADMIN), f"topic {quoted(name[0])}")
            return wire.CancelResponse(cancelled=await self._host.cancel_waits(name))
        if request.key:
            self._check_admin(call, request.key in call.account.grants.on_keys(ADMIN), f"key {quoted(request.key)}")
            return wire.CancelResponse(cancelled=await self._host.cancel_waits((request.key, -1)))
        session = self._session_of(request.session_id, request.principal, call, "cancelled")
        if not request.operation_ids:
            return wire.CancelResponse(cancelled=await self._host.cancel_session(session))
        cancelled, not_pending = await cancel(self._host, session, request.operation_ids, call.turn)
        return wire.CancelResponse(cancelled=len(cancelled), not_pending_operation_ids=not_pending)

    async def Extend(self, request: wire.ExtendRequest, call: Call) -> wire.ExtendResponse:
        timeout_ms_max = self._host.engine.limits.timeout_ms_max
        if not request.session_id:
            raise invalid_argument("session_id", "is not set")
        if not request.operation_ids:
            raise invalid_argument("operation_ids", "is empty; give at least one")
        check_range("timeout_ms", request.timeout_ms, 1, timeout_ms_max)
        session = self._session_of(request.session_id, request.principal, call, "extended")
        not_pending = await extend(self._host, session, request.operation_ids, request.timeout_ms, call.turn)
        await self._host.journal.durable()
        extended = len(request.operation_ids) - len(not_pending)
        return wire.ExtendResponse(extended=extended, not_pending_operation_ids=not_pending)

    # Inside.

    def _register_unary_wait(self, row: Operation, operation_id: int, call: Call) -> None:
        run = run_from_row(row, operation_id, self._host.engine.limits.timeout_ms_default)
        if run is None:
            raise invalid_argument("operation.condition", NO_CONDITION)
        self._host.register_unary_wait(run, call.account)

    def _session_of(self, session_id: str, principal: str, call: Call, done: str) -> sessions.Session:
        """A session of the caller, or of another principal if the caller is an admin. Raises `RpcError`."""
        account = call.account
        if principal not in ("", account.principal):
            whose = f"sessions of {quoted(principal)}"
            self._check_admin(call, ADMIN in account.grants.everywhere, whose, done)
            # `find` does not store an account: an administrator who mistypes names must not make accounts of them.
            account = self._host.sessions.accounts.find(principal)
        return self._host.sessions.get(session_id, account)

    def _check_admin(self, call: Call, may: bool, name: str, done: str = "cancelled") -> None:
        """Check the role admin for an action on other callers' operations. With a policy, the action is audited."""
        if not may:
            raise self._denied(call, ADMIN, name)
        if call.account.principal:
            self._host.sessions.accounts.audit.acted(done, call.account.principal, name)

    def _open_session(self, call: Call, session_id: str, incarnation: str = "") -> tuple[sessions.Session, bool]:
        """Return the session, and whether it is resumed. With `incarnation` it must exist. Raises `RpcError`."""
        if self._host.draining:
            raise unavailable("the daemon is shutting down")
        if incarnation:
            self._host.sessions.get(session_id, call.account, incarnation)
        return self._host.sessions.open(session_id, self._host.time.now_ms(), call.account)

    def _connect(
        self,
        call: Call,
        response_type: type[wire.SessionResponse] | type[wire.StreamResultsResponse],
        opening: wire.OpenSession | wire.StreamResultsRequest,
        *,
        expects_heartbeats: bool,
    ) -> ResultStream:
        """Attach a new stream to a session; `opened` is its first message."""
        session, resumed = self._open_session(call, opening.session_id)
        _check_read_by_clients(session)
        # A sequence number of another incarnation must acknowledge nothing, so the opening then counts as that of a new
        # session.
        resumed &= opening.incarnation in ("", session.incarnation)
        limits, session_settings = self._host.settings.limits, self._host.settings.session
        stream = self._host.sessions.attach(
            session,
            response_type,
            last_sequence=opening.last_sequence if resumed else 0,
            columns=opening.columns,
            expects_heartbeats=expects_heartbeats,
            now_ms=self._host.time.now_ms(),
        )
        stream.recheck = call.recheck
        # The resume itself is a change: the journal releases the results that a crash made uncertain only once it is
        # durable.
        self._host.journal.changed(session)
        opened = wire.SessionOpened(
            resumed=resumed,
            highest_operation_id=session.owner.highest_operation_id,
            heartbeat_interval_ms=session_settings.heartbeat_interval_ms,
            session_ttl_ms=session_settings.ttl_ms,
            operations_per_batch_max=batch_limits.OPERATIONS_MAX,
            unacknowledged_results_max=limits.unacknowledged_results_max,
            timeout_ms_default=limits.timeout_ms_default,
            incarnation=session.incarnation,
            message_bytes_max=self._message_bytes_max,
            pending=session.owner.pending,
            newest_sequence=session.outbox.last_sequence,
        )
        # Sent before it is durable: it must precede all results, and the next opening corrects it after a crash.
        stream.send(response_type(opened=opened))
        return stream

    async def _write(self, stream: ResultStream, call: Call) -> None:
        """Write the stream's messages until it ends, then detach it from its session."""
        try:
            await stream.run_writer(call.context.write, self._host.time.now_ms, call.turn)
        finally:
            self._host.sessions.detach(stream, self._host.time.now_ms())


def _wait_response(part: ResultSlice, callers_id: int) -> wire.WaitResponse:
    response = wire.WaitResponse()
    fill_row(response.result, part, part.start, part.item_start, part.fetched_start)
    response.result.operation_id = callers_id
    return response


def _check_read_by_clients(session: sessions.Session) -> None:
    """Raise `RpcError` for a session whose results go to a callback."""
    if session.callback is not None:
        raise invalid_argument("session_id", "is a session with a callback, to which its results are sent")
