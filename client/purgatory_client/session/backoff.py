"""Pauses between attempts: exponential backoff, capped, with full jitter; and waits with a limit.

Full jitter (a random pause between 0 and the ceiling) spreads out the clients of a daemon that has just restarted.
"""

import asyncio
import random
from typing import Final

import grpc
import grpc.aio

from purgatory_client.errors import Unavailable
from purgatory_client.rpc_errors import reason_of
from purgatory_client.session.addresses import PAUSE_MAX

_RETRIED_CODES: Final = frozenset(
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
)
_BROKEN_CODES: Final = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))
"""Codes of a call whose connection broke, or that the daemon reset before reading it."""
NO_CONNECTION: Final = ("failed to connect", "errors resolving")
"""Beginnings of gRPC's message when no daemon answers at the address."""
CONNECTED_MIN: Final = 1.0
"""Seconds after which an attempt counts as a successful connection."""


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most this long. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Backoff:
    """Pauses in seconds. The ceiling starts at `base`, doubles with each attempt and stays at `cap`."""

    def __init__(self, base: float = 0.05, cap: float = PAUSE_MAX, generator: random.Random | None = None) -> None:
        assert 0 < base <= cap, f"base={base} cap={cap}"
        self.base: Final = base
        self.cap: Final = cap
        self._generator: Final = random.Random() if generator is None else generator  # noqa: S311 - a pause is no secret
        self._ceiling = base

    def next_delay(self) -> float:
        ceiling = self._ceiling
        self._ceiling = min(self.cap, ceiling * 2)
        return self._generator.uniform(0, ceiling)

    def reset(self) -> None:
        """Start again from the base, after a connection was made."""
        self._ceiling = self.base


class Retry:
    """The attempts of one call that may be repeated safely. `give_up_after`: seconds from the first attempt; None:
    never. `pause_max`: of the pauses, seconds.
    """

    def __init__(self, give_up_after: float | None, pause_max: float = PAUSE_MAX) -> None:
        self._give_up_after: Final = give_up_after
        self._backoff: Final = Backoff(cap=pause_max)
        self._started_at: Final = asyncio.get_running_loop().time()

    async def pause(self, error: Exception) -> None:
        """Wait until the next attempt. Raises `error` if repeating cannot help, and Unavailable once `give_up_after`
        has passed.
        """
        if isinstance(error, grpc.aio.AioRpcError) and error.code() not in _RETRIED_CODES:
            raise error
        # Drawn before the check, which includes it: a call must not sleep beyond its limit only to fail then.
        delay = self._backoff.next_delay()
        elapsed = asyncio.get_running_loop().time() - self._started_at
        if self._give_up_after is not None and elapsed + delay > self._give_up_after:
            raise Unavailable(f"no connection for {elapsed:.1f} s: {_text(error)}") from error
        await asyncio.sleep(delay)


class Resumption:
    """The attempts of a call that is resumed when its connection breaks. Arguments as for `Retry`; `give_up_after`
    counts from the moment at which the connection broke.
    """

    def __init__(self, give_up_after: float | None, pause_max: float) -> None:
        self._give_up_after: Final = give_up_after
        self._pause_max: Final = pause_max
        self._retry: Retry | None = None
        self._attempted_at: float = asyncio.get_running_loop().time()

    async def pause(self, error: Unavailable) -> None:
        """Wait until the next attempt. Raises `error` if the daemon itself answered, if the call exceeded its
        deadline, or if the first connection could not be made.
        """
        loop, cause = asyncio.get_running_loop(), error.__cause__
        # `Unavailable` from the daemon itself (it is draining, or has no capacity) is an answer, not a broken call.
        # `DEADLINE_EXCEEDED` is not among them: the caller of a resumed call has set that deadline for the whole call.
        if not isinstance(cause, grpc.aio.AioRpcError) or cause.code() not in _BROKEN_CODES or error.is_answer:
            raise error
        if self._retry is None and (cause.details() or "").startswith(NO_CONNECTION):
            raise error
        # An attempt that lasted this long was connected, so the pauses and the time until giving up start again.
        if self._retry is None or loop.time() - self._attempted_at > CONNECTED_MIN:
            self._retry = Retry(self._give_up_after, self._pause_max)
        await self._retry.pause(error)
        self._attempted_at = loop.time()


def _text(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return reason_of(error.details()) or error.code().name
    return str(error) or repr(error)
