"""The stream on which a client's events travel: a message out, its receipt in, then the next.

A call for each message would cost several times as much. The stream is opened when it is first needed, and again after
it has ended: at worst one message finds that out, by an error. A refused message ends the stream, and fails alone.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import grpc.aio

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.base_errors import from_code
from purgatory_client.errors import Unavailable

Call = grpc.aio.StreamStreamCall[wire.AdvanceStreamRequest, wire.AdvanceStreamResponse]


class EventStream:
    """The stream of one client. `open_call` opens one; `timeout`: seconds that a receipt may take."""

    def __init__(self, open_call: Callable[[], Call], timeout: float = 30.0) -> None:
        self._open_call: Final = open_call
        self._timeout: Final = timeout
        self._idle: Call | None = None

    async def exchange(self, request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
        """Send a message and return its receipt; one at a time. Raises Unavailable, or gRPC's error when refused."""
        call, self._idle = self._idle, None
        if call is None or call.done():
            call = self._open_call()
        try:
            async with asyncio.timeout(self._timeout):
                receipt = await _exchanged(call, request)
        except TimeoutError:
            call.cancel()
            raise Unavailable(f"the daemon did not answer these events within {self._timeout:g} s") from None
        self._idle = call
        return receipt


_NOT_LET_IN: Final = frozenset((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED))


async def _exchanged(call: Call, request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
    try:
        await call.write(request)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        # The stream had ended before the daemon got these events; another one will do, unless nobody would let it in.
        code = await call.code()
        if code in _NOT_LET_IN:
            raise from_code(code.value[0], "", await call.details()) from error
        raise Unavailable(f"the stream of events ended: {await call.details()}") from error
    response = await call.read()
    if response is grpc.aio.EOF:
        raise Unavailable("the daemon ended the stream of events")
    return cast("wire.AdvanceStreamResponse", response).receipt
