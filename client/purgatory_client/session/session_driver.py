"""Drives a `SessionCore` over gRPC: one connection after another, each with a reader, a writer and a watchdog.

One task reads and one writes, as grpc.aio requires. The watchdog ends a connection on which nothing was received for
three heartbeat intervals. The first wait makes the first connection. After `give_up_after` seconds without one, all
pending waits end with Unavailable, and the next wait opens a new session. No event loop is used before the first
submit, so a client can be created outside of one.
"""

import asyncio
import contextlib
import logging
import math
import os
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

import grpc
import grpc.aio
from grpc_status import rpc_status

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client import errors, rpc_errors
from purgatory_client.batches import Entry
from purgatory_client.outbox.ticket import Ticket
from purgatory_client.results import Result, ResultColumns
from purgatory_client.session.addresses import check_address, pause_max
from purgatory_client.session.backoff import Backoff, set_within
from purgatory_client.session.channel import UNPROTECTED, ChannelSecurity, check_process, open_channel
from purgatory_client.session.pending_waits import TURN, Ended, settle, timeout_end
from purgatory_client.session.session_core import SessionCore
from purgatory_client.session.shards import shard_refusal

if TYPE_CHECKING:  # few clients have one
    from purgatory_client.outbox.outbox_gate import OutboxGate

Call = grpc.aio.StreamStreamCall[wire.SessionRequest, wire.SessionResponse]

OPEN_TIMEOUT: Final = 10.0
"""Seconds to wait for the daemon to open a session, by default."""
SILENT_INTERVALS_MAX: Final = 3
LEAVE_TIMEOUT: Final = 2.0
"""Seconds that `close` may spend on sending cancels to the daemon."""
FIRST_PATIENCE: Final = 1.0
"""Minimum number of seconds for the first connection."""

_RETRIED_CODES: Final = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    )
)

_log = logging.getLogger(__name__)


class SessionDriver:
    """The session of one client. Belongs to one event loop.

    With an outbox the client keeps one session forever: it is never given up, and operations that are pending when the
    client closes stay pending at the daemon.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        pending_max: int,
        give_up_after: float | None,
        open_timeout: float = OPEN_TIMEOUT,
        outbox: str | os.PathLike[str] | None = None,
        security: ChannelSecurity = UNPROTECTED,
    ) -> None:
        self._address: Final = address
        self._shard_address = ""
        """The address of the session's shard, once another one has named it."""
        self._must_move = False
        self._security: Final = security
        self._name: Final = name
        self._pending_max: Final = pending_max
        self._give_up_after: Final = give_up_after if outbox is None else None
        self._open_timeout: Final = open_timeout
        self._backoff: Final = Backoff(cap=pause_max(address))
        self._work, self._changed, self._opened = asyncio.Event(), asyncio.Event(), asyncio.Event()
        if outbox is None:
            self._core = self._new_core()
            self._outbox = None
        else:
            from purgatory_client.outbox.outbox_file import OutboxFile  # noqa: PLC0415 - few clients have one
            from purgatory_client.outbox.outbox_gate import OutboxGate  # noqa: PLC0415 - as above

            file = OutboxFile(outbox)
            self._core = SessionCore(file.session_id, pending_max)
            self._outbox = OutboxGate(file, self._core, self._notify)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None
        # Kept here because uvloop's handle of a timer that is already due has no `when`.
        self._timer_at = math.inf
        self._received_at = 0.0
        self._closed: errors.PurgatoryClientError | None = None
        self.connections = 0  # opened so far

    @property
    def session_id(self) -> str:
        """The id of the current session. It changes after the connection was given up."""
        return self._core.session_id

    @property
    def pending(self) -> int:
        """Number of operations that are pending in this client."""
        return self._core.pending

    def submit(self, wait: Entry) -> asyncio.Future[Result | ResultColumns]:
        """Submit the wait, which is sent as soon as the connection allows. Returns the future of its answer.

        Raises LimitExceeded, ClientClosed, and OutboxError for an outbox that cannot be read.
        """
        self._submit(wait)
        wait.future = asyncio.get_running_loop().create_future()
        return wait.future

    async def submit_kept(self, wait: Entry, tag: str) -> Ticket:
        """As `submit`, for a wait that stays in the outbox until it is confirmed. Returns when it is in the file."""
        outbox = self.outbox()
        self._submit(wait)
        try:
            return await outbox.keep(wait, tag)
        except asyncio.CancelledError:
            self.cancel(wait)
            raise

    def cancel(self, wait: Entry) -> None:
        """Cancel a wait at the daemon after its caller was cancelled. Does not touch its future."""
        self._core.cancel(wait)
        if self._outbox is not None:
            self._outbox.cancelled(wait)
        self._notify()

    def extended(self, operation_ids: Iterable[int], timeout_ms: int) -> None:
        """The daemon lets these operations wait for at least `timeout_ms` from now on."""
        self._core.extended(operation_ids, timeout_ms, asyncio.get_running_loop().time())

    def leave_loop(self) -> None:
        """Go on in the running loop, because the previous one is closed. With an outbox, only `close` is possible."""
        if self._outbox is not None:  # its thread reports to the previous loop
            self._closed = errors.WrongEventLoop(
                "the event loop of this client is closed; create another one for its outbox"
            )
            return
        for wait in self._core.waiting():  # nothing awaits them any more
            self._core.cancel(wait)
        self._core.connection_lost(asyncio.get_running_loop().time())
        self._work, self._changed, self._opened = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task, self._timer, self._timer_at = None, None, math.inf

    def outbox(self) -> "OutboxGate":
        """The outbox, with its file loaded. Raises OutboxError if the client has none."""
        if self._outbox is None:
            raise errors.OutboxError(
                errors.OutboxReason.MISSING, "this client has no outbox; create it with outbox=PATH"
            )
        if self._closed is not None:
            raise self._closed
        self._outbox.load()
        if self._core.pending:
            self._start()
        return self._outbox

    async def close(self, finish: bool) -> None:
        """End the session. With `finish`, wait for all pending waits first; else cancel them here and at the daemon."""
        if finish and self._closed is None:
            await self._wait_until(lambda: not self._core.pending)
        if self._closed is None:
            self._closed = errors.ClientClosed("the client is closed")
        task, self._task = self._task, None
        # The task sends the cancels, so it is stopped last; the outbox is closed after it, to write its last records.
        if task is not None and not task.done():
            await self._leave(task)
        if self._outbox is not None:
            await self._outbox.close()

    async def _leave(self, task: asyncio.Task[None]) -> None:
        for wait in self._core.waiting():
            if self._outbox is None:
                self._core.cancel(wait)
            settle(wait, errors.ClientClosed("the client was closed while this wait was pending"))
        # Operations of an outbox stay pending at the daemon. They are forgotten here, because `SessionCore.ended` waits
        # for them.
        if self._outbox is not None:
            self._core.drain()
        self._core.end()
        self._work.set()
        if self._core.opened:
            await asyncio.wait({task}, timeout=LEAVE_TIMEOUT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _new_core(self) -> SessionCore:
        unique = uuid.uuid4().hex
        return SessionCore(f"{self._name}-{unique}" if self._name else unique, self._pending_max)

    def _submit(self, wait: Entry) -> None:
        check_process()
        if self._closed is not None:
            raise self._closed
        if self._outbox is not None:
            self._outbox.load()
        self._core.submit(wait, asyncio.get_running_loop().time())
        if self._outbox is not None:
            self._outbox.schedule_staging()
        self._work.set()
        self._start()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            run = self._run()
            self._task = asyncio.get_running_loop().create_task(run, name=f"purgatory session {self.session_id}")

    def _notify(self) -> None:
        # `_connect_once` clears the event, so each connection is counted once.
        if self._core.opened and not self._opened.is_set():
            self.connections += 1
            self._opened.set()
        self._work.set()
        self._changed.set()

    async def _run(self) -> None:
        """Connect, and reconnect, until the session is closed, taken over or given up."""
        loop = asyncio.get_running_loop()
        lost_at = loop.time()
        self._backoff.reset()
        # The deadline for giving up includes the time until the session is opened: a daemon that accepts connections
        # but never answers counts as absent.
        while True:
            # An attempt counts as a connection only if the session was opened. Otherwise a daemon that accepts
            # connections and then hangs would reset the backoff and `give_up_after` for ever.
            before = self.connections
            open_timeout = self._open_timeout
            if self._give_up_after is not None:
                open_timeout = max(0.0, min(open_timeout, lost_at + self._give_up_after - loop.time()))
            try:
                reason = await self._connect_once(open_timeout)
            except errors.PurgatoryClientError as error:
                self._end_session(error)
                return
            except Exception as error:
                self._end_session(errors.ProtocolError(f"internal error in this client: {error!r}"))
                raise
            if self._closed is not None:
                return
            # The daemon has opened the session, so the time without a connection starts now, and not with the first
            # attempt.
            if self.connections > before:
                self._backoff.reset()
                lost_at = loop.time()
            if self._must_move:
                self._must_move = False
                continue
            left = self._give_up_at(lost_at) - loop.time()
            delay = self._backoff.next_delay()
            if not self.connections and left > 0:
                delay = min(delay, left)  # with one more attempt at the end
            if delay > left:
                waited = loop.time() - lost_at
                self._end_session(errors.Unavailable(f"no connection to {self._address} for {waited:.1f} s: {reason}"))
                return
            _log.info("session %s: %s; next attempt in %.3f s", self.session_id, reason, delay)
            await asyncio.sleep(delay)

    def _give_up_at(self, lost_at: float) -> float:
        """When to give up, if an attempt has failed. Before the first connection, the pending waits' longest timeout is
        long enough: the address may be wrong.
        """
        if self._give_up_after is None:
            return math.inf
        patience_ends = lost_at + self._give_up_after
        if self.connections:
            return patience_ends
        timeouts_end = [timeout_end(wait) for wait in self._core.waiting()]
        return min(patience_ends, max([lost_at + FIRST_PATIENCE, *timeouts_end]))

    def _end_session(self, error: errors.PurgatoryClientError) -> None:
        """End all pending waits with `error`. The next wait opens a new session, with two exceptions.

        After a takeover, two clients would take the session from each other forever; an outbox file has one session.
        """
        if isinstance(error, errors.SessionTakenOver) or self._outbox is not None:
            self._closed = error
        pending = self._core.drain()
        if self._outbox is None:
            # Under a new id: what the daemon still has of the old session must not be taken for results of the waits
            # that follow.
            self._core, self._shard_address = self._new_core(), ""
        for wait in pending:
            settle(wait, error)
        self._changed.set()

    async def _connect_once(self, open_timeout: float) -> str:
        """Run one connection; returns why it ended. Raises errors for which reconnecting would not help.

        The order at the end matters: results that are being written to the outbox belong to this connection, so the
        core must receive them before the next connection opens with the sequence number of the last result.
        """
        channel = open_channel(self._shard_address or self._address, self._security)
        stub = PurgatoryServiceStub(channel)
        call: Call = stub.Session()
        self._received_at = asyncio.get_running_loop().time()
        self._opened.clear()
        tasks: list[asyncio.Future[str]] = [
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._write(call, stub)),
            asyncio.create_task(self._watch(open_timeout)),
            asyncio.create_task(self._fail_overdue()),
        ]
        if self._outbox is not None:
            tasks.append(self._outbox.connecting())
        try:
            # Whichever ends first ends the connection. Several may end together, so `_why` looks at the going-away
            # message before the tasks: after a takeover the stream's own end says nothing.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # In the order of `tasks`: if several have ended, the reader knows the cause best.
            return await self._why(call, [task for task in tasks if task in done])
        finally:
            if (outbox := self._outbox) is not None:
                await self._wait_until(lambda: outbox.is_settled)
            self._core.connection_lost(asyncio.get_running_loop().time())
            self._stop_timer()
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.close()

    async def _why(self, call: Call, done: list[asyncio.Future[str]]) -> str:
        """Why the connection ended, from the first task that ended; raises if reconnecting would not help."""
        if self._core.going_away == wire.GoingAway.REASON_TAKEN_OVER:
            raise errors.SessionTakenOver(f"another client opened the session {self.session_id}")
        closed = self._core.going_away == wire.GoingAway.REASON_SESSION_CLOSED
        if closed and self._closed is None and self._outbox is None:
            raise errors.SessionClosed(f"the session {self.session_id} was closed by another caller")
        for task in done:
            error = task.exception()
            if error is None:
                return task.result()
            if isinstance(error, grpc.aio.AioRpcError):
                moved = shard_refusal(error)
                # Once: daemons that disagree about shards would send it to and fro.
                if moved is not None and moved.target and not self._shard_address:
                    check_address(moved.target)
                    self._shard_address, self._must_move = moved.target, True
                    return f"the session belongs to {moved.target}"
                # A wrong port stays wrong; but a proxy that answered in gRPC before may be restarting.
                is_wrong_port = not self.connections and rpc_errors.HTTP1 in (error.details() or "")
                may_reconnect = error.code() in _RETRIED_CODES
                if self._is_message_refused(error):
                    may_reconnect = self._core.message_refused()
                    self._settle(self._core.take_too_large())
                if is_wrong_port or not may_reconnect:
                    raise rpc_errors.from_rpc_error(error)
                return rpc_errors.reason_of(error.details()) or error.code().name
            # grpc.aio raises this for a write to a stream that has ended; the status of the call has the reason.
            if isinstance(error, asyncio.InvalidStateError):
                return f"the stream ended: {(await call.code()).name}"
            raise error
        raise AssertionError("a connection ended without a reason")

    @staticmethod
    def _is_message_refused(error: grpc.aio.AioRpcError) -> bool:
        """Whether gRPC itself refused a message. The daemon's refusals have the same code, but also status details."""
        return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and rpc_status.from_call(error) is None

    def _settle(self, ended: list[Ended]) -> None:
        if ended:
            self._set_answers(ended)
            self._notify()

    def _set_answers(self, ended: list[Ended]) -> None:
        if self._outbox is not None:
            self._outbox.settle_all(ended)
        else:
            for wait, answer in ended:
                settle(wait, answer)

    async def _read(self, call: Call) -> str:
        loop = asyncio.get_running_loop()
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return "the daemon ended the stream"
            # Before the message is handled: the watchdog judges the silence of the daemon, not the time that this
            # client takes.
            self._received_at = now = loop.time()
            response = cast("wire.SessionResponse", message)
            if self._outbox is not None and self._outbox.must_write_first(response):
                self._outbox.write_message(response)
            else:
                self._set_answers(self._core.receive(response, now))
            if self._core.is_used_up:
                raise errors.OperationIdInUse(
                    f"another client has used up the operation ids of session {self.session_id}"
                )
            # The writer need not run for each result: the acknowledgement that is due first has its timer.
            if self._timer is not None and self._core.is_quiet(self._timer_at):
                self._changed.set()
            else:
                self._notify()

    async def _write(self, call: Call, stub: PurgatoryServiceStub) -> str:
        loop = asyncio.get_running_loop()
        # The opening must be the first message; nothing else is sent until the daemon has answered it, because
        # `next_message` returns None before that.
        await call.write(self._core.open_message())
        while True:
            message = self._core.next_message(loop.time())
            # `next_message` may have refused operations that are too large, also if it returned none.
            self._settle(self._core.take_too_large())
            if message is not None:
                await call.write(message)
            elif self._core.ended and self._outbox is not None:
                # Not half-closed and not closed at the daemon: its pending waits must stay registered.
                return "this client was closed"
            elif self._core.ended:
                await self._close_session(stub)
                await call.done_writing()
                await loop.create_future()  # never returns: the reader ends the connection
            else:
                await self._wait_for_work(loop)

    async def _close_session(self, stub: PurgatoryServiceStub) -> None:
        """Close the session, so that the daemon need not keep it. If this fails, the daemon drops the session later."""
        request = wire.CloseSessionRequest(session_id=self.session_id)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.CloseSession(request, timeout=LEAVE_TIMEOUT)

    async def _wait_for_work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return when there may be something to write.

        A timer that is set for an earlier time is kept: one early wake-up costs less than a new timer per message.
        """
        wake_at = self._core.wake_at()
        if wake_at is not None and wake_at < self._timer_at:
            self._stop_timer()
            self._timer, self._timer_at = loop.call_at(wake_at, self._wake), wake_at
        # Cleared after the wait and not before it: work that was announced since the last look ends the wait at once.
        await self._work.wait()
        self._work.clear()

    def _wake(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._work.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf

    async def _watch(self, open_timeout: float) -> str:
        """Return when the daemon has sent nothing for too long."""
        loop = asyncio.get_running_loop()
        # `_opened` is set for this connection only: `_connect_once` has cleared it.
        if not await set_within(self._opened, open_timeout):
            return f"the daemon did not open the session within {open_timeout:.1f} s"
        silence_max = self._core.heartbeat_interval * SILENT_INTERVALS_MAX
        while True:
            left = self._received_at + silence_max - loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            # This event loop may itself have been blocked: let the reader first process what has arrived.
            await asyncio.sleep(0.05)
            if self._received_at + silence_max <= loop.time():
                return f"nothing received for {silence_max:.1f} s"

    async def _fail_overdue(self) -> str:
        while True:
            await asyncio.sleep(TURN)
            self._settle(self._core.fail_overdue(self._received_at))

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
