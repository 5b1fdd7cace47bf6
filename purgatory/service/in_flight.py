"""Which calls still need their answer when the daemon ends.

A gRPC server that stops waits for all calls alike: for a unary one whose answer is on its way, and for a stream that
would never end by itself (a health watch, an idle stream of events). Only the first deserve the grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc


class UnaryCalls(grpc.aio.ServerInterceptor):
    """Counts the unary calls that are being served."""

    def __init__(self) -> None:
        self.count = 0
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

    async def wait_none(self, timeout_s: float) -> None:
        """Returns when no unary call is being served, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none.wait()
        except TimeoutError:
            return

    def _entered(self) -> None:
        self.count += 1
        self._none.clear()

    def _left(self) -> None:
        self.count -= 1
        assert self.count >= 0, f"{self.count} calls are being served"
        if self.count == 0:
            self._none.set()
