"""The stream that carries a client's events: it sends a message, waits for its receipt, and then sends the next.

A call per message would cost several times as much. The stream is opened on first use, and reopened after it has ended;
at worst, one message detects the end by failing. A refused message ends the stream, and only that message fails.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import grpc.aio

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.errors import Unavailable
from purgatory_client.rpc_errors import STATUS_LOST, from_code, reason_of

REOPENED_MAX: Final = 5
"""How often a stream is reopened for one message."""

Call = grpc.aio.StreamStreamCall[wire.AdvanceStreamRequest, wire.AdvanceStreamResponse]


class EventStream:
    """The stream of one client. `open_call` opens a stream; `timeout`: seconds to wait for a receipt."""

    def __init__(self, open_call: Callable[[], Call], timeout: float = 30.0) -> None:
        self._open_call: Final = open_call
        self._timeout: Final = timeout
        self._idle: Call | None = None
        self._task: asyncio.Task[object] | None = None
        """The task that waits for a receipt, until `_due_at`."""
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """One timer for many messages: creating and cancelling one costs as much as encoding a message."""
        self._is_late = False

    async def exchange(self, request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
        """Send a message and return its receipt. One call at a time. Raises Unavailable, or gRPC's error if refused."""
        # Put back only after its receipt: after an error or a cancel, the next receipt on this stream would belong to
        # this message.
        call, self._idle = self._idle, None
        if call is None or call.done():
            call = self._open_call()
        self._start_timer()
        try:
            # Repeating is safe only because None means that nothing was sent: a signal that is sent twice counts
            # twice. The number is limited, because a daemon may end every stream at once.
            reopened = 0
            while (receipt := await _exchanged(call, request)) is None:
                if reopened == REOPENED_MAX:
                    raise Unavailable(f"the stream of events ended {reopened + 1} times: {await call.details()}")
                reopened += 1
                call = self._open_call()
        except asyncio.CancelledError:
            # Only the timer's own cancellation ends here. If the task was cancelled by others as well, propagate that.
            if not self._is_late or self._task is None or self._task.uncancel() > 0:
                raise
            call.cancel()
            raise Unavailable(f"the daemon did not answer these events within {self._timeout:g} s") from None
        finally:
            self._task = None
        self._idle = call
        return receipt

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._task, self._is_late = asyncio.current_task(), False
        self._due_at = loop.time() + self._timeout
        if self._timer is None:
            self._timer = loop.call_at(self._due_at, self._check_time, loop)

    def _check_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._task is None:
            return
        if loop.time() < self._due_at:  # the timer was set for an earlier message
            self._timer = loop.call_at(self._due_at, self._check_time, loop)
        else:
            self._is_late = True
            self._task.cancel()


_NOT_LET_IN: Final = frozenset((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED))


async def _exchanged(call: Call, request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt | None:
    """The receipt of `request`; None if the stream ended, nothing was sent, and gRPC has lost the reason."""
    try:
        await call.write(request)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        # The stream ended before the daemon received these events. The next message opens a new stream, which cannot
        # help if the daemon rejects the caller's credentials.
        code = await call.code()
        if code is grpc.StatusCode.INTERNAL and await call.details() == STATUS_LOST:
            return None
        if code in _NOT_LET_IN:
            raise from_code(code.value[0], "", await call.details()) from error
        raise Unavailable(f"the stream of events ended: {reason_of(await call.details())}") from error
    response = await call.read()
    if response is grpc.aio.EOF:
        raise Unavailable("the daemon ended the stream of events")
    return cast("wire.AdvanceStreamResponse", response).receipt
