"""One result stream of a session: what it writes, and when it ends.

The writer pulls: first control messages (receipts, heartbeats), then results from the session's outbox, one bounded
message at a time. So a slow reader delays only its own stream: its results stay in its outbox and its control messages
in a small queue, and while that queue is full, no further requests are read from it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from purgatory import sizes
from purgatory.service.errors import RpcError, unavailable
from purgatory.service.fair_queue import Turn, next_loop_turn
from purgatory.service.loop_stalls import StallTimer
from purgatory.service.sessions.session import Session
from purgatory.service.translate.result_slices import ResultSlice
from purgatory.service.translate.results import fill_batch
from purgatory.v1 import purgatory_service_pb2

Response = purgatory_service_pb2.SessionResponse | purgatory_service_pb2.StreamResultsResponse
ResponseType = type[purgatory_service_pb2.SessionResponse] | type[purgatory_service_pb2.StreamResultsResponse]
Write = Callable[[Response | bytes], Awaitable[None]]
"""Write a message or its encoded bytes."""

SILENT_INTERVALS_MAX: Final = 3
"""A peer that should send heartbeats is considered gone after this many silent intervals."""

SILENT_CHECKS_MIN: Final = 3
"""It must also have been silent at this many checks: messages may have arrived but not been read while the event loop
was busy."""


def _no_check() -> None:
    """The recheck of a stream without a principal."""


class ResultStream:
    """The state of one stream, from when it is attached to a session until `run_writer` returns."""

    def __init__(
        self,
        session: Session,
        response_type: ResponseType,
        *,
        columns: bool,
        expects_heartbeats: bool,
        now_ms: int,
        writing: StallTimer,
    ) -> None:
        self.session: Final = session
        self._writing: Final = writing
        self._response_type: Final = response_type
        self._columns: Final = columns
        self._room_max: Final = sizes.COLUMN_RESULTS_MAX if columns else sizes.ROW_RESULTS_MAX
        self._room = self._room_max
        """Results, and items, to put into the next message; fewer while they are large."""
        self._expects_heartbeats = expects_heartbeats
        self._control: Final[deque[Response]] = deque()
        self._reserved = 0
        """Control messages with a reserved place in the queue, to be sent once they are durable."""
        self._woken: asyncio.Future[None] | None = None
        """Done once the writer, which waits for it, has something to look at."""
        self._space: Final = asyncio.Event()
        self._space.set()
        self._waiting_for_peer = False
        self._half_closed = False
        # A stream ends in two steps. Once this is set, it takes no results and serves no requests; when the writer has
        # written it, `ended` is set. So a session can have a stream that is closing.
        self._last_message: Response | Exception | None = None
        self._ending_since_ms = -1
        self._writer: asyncio.Task[None] | None = None
        self.reader: asyncio.Task[None] | None = None
        """The task that serves the peer's requests. It ends by itself (`handlers.Requests`)."""
        self._given_up = False
        self.ended = False
        """Set once nothing more will be written."""
        self.last_read_ms = now_ms
        self.last_write_ms = now_ms
        self._silent_checks = 0
        self.recheck: Callable[[], None] = _no_check
        """Raises `RpcError` once the principal could no longer open this stream."""

    # Called by the reader of the stream.

    def waiting_for_peer(self) -> None:
        """The reader waits for the peer from now on. Silence before that is not the peer's fault."""
        self._waiting_for_peer = True

    def message_received(self, now_ms: int) -> None:
        self._waiting_for_peer = False
        self._silent_checks = 0
        self.last_read_ms = now_ms

    def paused(self) -> None:
        """What the peer has sent may not have been read: the checks for silence begin again."""
        self._silent_checks = 0

    def half_closed(self) -> None:
        """The peer will send nothing more. The stream ends once everything the peer waits for has been written."""
        self._half_closed = True
        self._expects_heartbeats = False
        self.wake()

    async def wait_for_space(self) -> None:
        """Wait until a control message may be sent. Only one task may wait, and it then sends at most one message."""
        await self._space.wait()

    def send(self, message: Response) -> None:
        """Queue a control message. It is written before all results that are not being written yet."""
        self.reserve()
        self.send_reserved(message)

    def extended(self, operation_ids: Sequence[int], timeout_ms: int) -> None:
        """Report that operations were given more time, unless the peer does not read."""
        # One place is left for the reader, which may have waited for space and not used it yet.
        if not self.closing and self._unwritten < sizes.CONTROL_MESSAGES_MAX - 1:
            extended = purgatory_service_pb2.OperationsExtended(operation_ids=operation_ids, timeout_ms=timeout_ms)
            self.send(self._response_type(extended=extended))

    def reserve(self) -> None:
        """Reserve a place in the queue of control messages, for `send_reserved`."""
        assert self._unwritten < sizes.CONTROL_MESSAGES_MAX, "a control message was sent without waiting for space"
        self._reserved += 1
        if self._unwritten >= sizes.CONTROL_MESSAGES_MAX:
            self._space.clear()

    def send_reserved(self, message: Response) -> None:
        """Queue a control message in a reserved place."""
        self._reserved -= 1
        self._control.append(message)
        self.wake()

    @property
    def _unwritten(self) -> int:
        return len(self._control) + self._reserved

    # Called by the session and the host.

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def taken_over(self) -> None:
        self._go_away(purgatory_service_pb2.GoingAway.REASON_TAKEN_OVER)

    def session_closed(self) -> None:
        self._go_away(purgatory_service_pb2.GoingAway.REASON_SESSION_CLOSED)

    def shut_down(self) -> None:
        self._go_away(purgatory_service_pb2.GoingAway.REASON_SHUTTING_DOWN)

    def _go_away(self, reason: purgatory_service_pb2.GoingAway.Reason) -> None:
        self._finish(self._response_type(going_away=purgatory_service_pb2.GoingAway(reason=reason)))

    def fail(self, error: Exception) -> None:
        self._finish(error)

    def _finish(self, last: Response | Exception) -> None:
        # The first reason wins: a stream that was taken over must not report the shutdown that follows.
        if not self.closing:
            self._last_message = last
            self.wake()

    @property
    def closing(self) -> bool:
        return self._last_message is not None or self.ended

    def check(self, now_ms: int, heartbeat_interval_ms: int) -> None:
        """Send a heartbeat if nothing was written for an interval. End the stream if its peer is silent or no longer
        authorized.

        A stream that is ending has one interval to write its last message; a peer that does not read gets no more time.
        """
        if self._last_message is not None:
            if self._ending_since_ms < 0:
                self._ending_since_ms = now_ms
            elif now_ms - self._ending_since_ms >= heartbeat_interval_ms:
                self._give_up()
            return
        try:
            self.recheck()
        except RpcError as refused:
            self.fail(refused)
            return
        if self._is_silent(now_ms, SILENT_INTERVALS_MAX * heartbeat_interval_ms):
            silent_ms = now_ms - self.last_read_ms
            self.fail(unavailable(f"the client has sent nothing for {silent_ms} ms; it should send heartbeats"))
        elif now_ms - self.last_write_ms >= heartbeat_interval_ms and not self._control:
            # Set when it is queued: a peer that does not read must not get another heartbeat at each check.
            self.last_write_ms = now_ms
            self._control.append(self._response_type(heartbeat=purgatory_service_pb2.Heartbeat()))
            self.wake()

    def _is_silent(self, now_ms: int, silent_ms_max: int) -> bool:
        if not (self._expects_heartbeats and self._waiting_for_peer):
            return False
        self._silent_checks += 1
        return now_ms - self.last_read_ms > silent_ms_max and self._silent_checks >= SILENT_CHECKS_MIN

    def _give_up(self) -> None:
        if self._writer is not None and not self._given_up and not self.ended:
            self._given_up = True
            # It is stuck in a write that the peer does not read, so a last message would not reach the peer either.
            self._writer.cancel()

    # The writer.

    async def run_writer(self, write: Write, now_ms: Callable[[], int], turn: Turn = next_loop_turn) -> None:
        """Write until the stream ends. Each message of results acquires a `turn` first.

        Raises:
            RpcError: The error passed to `fail`, or UNAVAILABLE if the peer does not read.
        """
        self._writer = asyncio.current_task()
        try:
            await self._write_all(write, now_ms, turn)
        except asyncio.CancelledError:
            # Only `_give_up`'s own cancellation ends here. If the task was cancelled by others as well, propagate that.
            if not self._given_up or self._writer is None or self._writer.uncancel() > 0:
                raise
            raise unavailable("the stream was ending, and its last messages were not read") from None
        finally:
            self.ended = True
            # The reader may be waiting for space. It finds the stream closing and ends.
            self._space.set()
            self._writer = self._last_message = (
                None  # they refer to this object: a cycle would wait for the garbage collector
            )

    async def _write_all(self, write: Write, now_ms: Callable[[], int], turn: Turn) -> None:
        has_turn, loop = False, asyncio.get_running_loop()
        while True:
            has_results = self._has_results
            if has_results and not has_turn:
                await turn()
                has_turn = True
                # Chosen after the turn: the stream may have ended in the meantime. Receipts that came in the meantime
                # go first, but the turn stays with the results: each wait for a turn lets in more receipts, and a
                # session that registered all the time got its results hundreds of milliseconds late on a busy daemon.
                has_results = self._has_results
            results: bytes | None = None
            if has_results:
                # Without an await inside: the timer measures one uninterrupted piece of work.
                with self._writing:
                    results = self._next_results()
            message = results or self._next_control()
            if message is not None:
                # Before the write, which may wait for the peer: it is then known when the next heartbeat is due.
                self.last_write_ms = now_ms()
                await write(message)
                if results is not None:
                    has_turn = False
                    # Now, when the results are on their way, and no longer put back.
                    self.session.outbox.pack_written()
            elif self._is_finished():
                break
            else:
                # There is no await between the last look and this line, so no wake-up is lost.
                # A future and not an event, which asks the system for the process id each time.
                self._woken = loop.create_future()
                await self._woken
        if isinstance(self._last_message, Exception):
            raise self._last_message
        if self._last_message is not None:
            await write(self._last_message)

    @property
    def _has_results(self) -> bool:
        """Whether results are next. Encoding them is the longest work of a stream, so it needs a turn."""
        # A stream that was taken over must not take results: the new one has rewound the outbox and writes them all.
        session = self.session
        is_next = not self._control and self._last_message is None and session.stream is self
        return is_next and session.outbox.unwritten > 0

    def _is_finished(self) -> bool:
        if self._last_message is not None:
            return True
        session = self.session
        waits = session.owner.pending or self._reserved or (session.stream is self and session.outbox.unwritten)
        return self._half_closed and not waits

    def _next_control(self) -> Response | None:
        if not self._control or isinstance(self._last_message, Exception):
            return None
        message = self._control.popleft()
        if self._unwritten < sizes.CONTROL_MESSAGES_MAX:
            self._space.set()
        return message

    def _next_results(self) -> bytes | None:
        """The next message of results, encoded: its size must be checked, and encoding it twice would be slow."""
        outbox = self.session.outbox
        while True:
            # Taken before the size is known, and put back if the message is too large: only the encoder knows it.
            first_sequence, slices = outbox.take(self._room, self._room)
            if not slices:
                return None
            encoded = self._encode(first_sequence, slices)
            results = sum(map(len, slices))
            if len(encoded) <= sizes.MESSAGE_BYTES_MAX or results == 1:
                if self._room < self._room_max and len(encoded) < sizes.MESSAGE_BYTES_MAX // 4:
                    self._room = min(self._room_max, 2 * self._room)
                return encoded
            outbox.put_back(slices)
            # To half of the size, because results differ in size; at least by half, so that it ends.
            items = sum(part.item_stop - part.item_start for part in slices)
            self._room = max(1, max(results, items) * sizes.MESSAGE_BYTES_MAX // (2 * len(encoded)))

    def _encode(self, first_sequence: int, slices: Sequence[ResultSlice]) -> bytes:
        message = self._response_type()
        fill_batch(message.results, first_sequence, slices, columns=self._columns)
        return message.SerializeToString()
