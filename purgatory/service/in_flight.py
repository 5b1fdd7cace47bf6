"""Which calls still need their answer when the daemon ends.

A gRPC server that stops waits for all calls alike: for a unary one whose answer is on its way, and for a stream that
would never end by itself (a health watch, an idle stream of events). Only the first deserve the grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

QUIET_S: Final = 0.05


class UnaryCalls(grpc.aio.ServerInterceptor):
    """Counts the unary calls that are being served."""

    def __init__(self) -> None:
        self.count = 0
        self._served = 0
        self._none: Final = asyncio.Event()
        self._none.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler of a unary call; leaves streams as they are."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        serve: Callable[[Any, Any], Any] = handler.unary_unary  # a coroutine function: the stubs know only threads

        async def counted(request: object, context: object) -> object:
            self._entered()
            try:
                return await serve(request, context)
            finally:
                self._left()

        return grpc.unary_unary_rpc_method_handler(counted, handler.request_deserializer, handler.response_serializer)

    async def wait_quiet(self, timeout_s: float) -> None:
        """Returns once no call has been served for `QUIET_S`, or after `timeout_s`.

        Calls that have arrived but were not looked at yet would else be cut, rather than told UNAVAILABLE.
        """
        try:
            async with asyncio.timeout(timeout_s):
                served = -1
                while self.count or served != self._served:
                    served = self._served
                    await self._none.wait()
                    await asyncio.sleep(QUIET_S)
        except TimeoutError:
            return

    def _entered(self) -> None:
        self.count += 1
        self._none.clear()

    def _left(self) -> None:
        self.count -= 1
        self._served += 1
        assert self.count >= 0, f"{self.count} calls are being served"
        if self.count == 0:
            self._none.set()
