"""Repeats a call while there is no connection, for calls that are harmless to repeat."""

import asyncio
from typing import Final

import grpc
import grpc.aio

from purgatory_client.errors import Unavailable
from purgatory_client.session.backoff import Backoff

_RETRIED_CODES: Final = frozenset(
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
)


class Retry:
    """The attempts of one call. `give_up_after`: seconds from the first one; None: never."""

    def __init__(self, give_up_after: float | None) -> None:
        self._give_up_after: Final = give_up_after
        self._backoff: Final = Backoff()
        self._started_at: Final = asyncio.get_running_loop().time()

    async def pause(self, error: Exception) -> None:
        """Wait until the next attempt. Raises `error` where another cannot help, and Unavailable when out of time."""
        if isinstance(error, grpc.aio.AioRpcError) and error.code() not in _RETRIED_CODES:
            raise error
        delay = self._backoff.next_delay()
        elapsed = asyncio.get_running_loop().time() - self._started_at
        if self._give_up_after is not None and elapsed + delay > self._give_up_after:
            raise Unavailable(f"no connection for {elapsed:.1f} s: {_text(error)}") from error
        await asyncio.sleep(delay)


def _text(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or repr(error)
