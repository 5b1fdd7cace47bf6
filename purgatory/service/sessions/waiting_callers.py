"""Re-authorization of pending unary waits: a wait ends when its caller could no longer make the call.

A wait can be pending for hours without any message from its caller. The pending waits are checked in rounds, an eighth
of them at a time, because checking a token takes some microseconds.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary

from purgatory import sizes
from purgatory.service.errors import RpcError

# With 10,000 waits whose callers have tokens, this takes about 1 % of the loop.
ROUNDS: Final = 8
"""Number of calls to `check_some` that check every wait once."""


class WaitingCallers:
    """Pending waits, identified by the future of their result and removed with it."""

    def __init__(self) -> None:
        self._rechecks: Final[WeakKeyDictionary[asyncio.Future[Any], Callable[[], None]]] = WeakKeyDictionary()
        self._unchecked: list[ReferenceType[asyncio.Future[Any]]] = []
        """Waits that are not yet checked in this round."""

    def add(self, future: asyncio.Future[Any], recheck: Callable[[], None]) -> None:
        """Args:
        recheck: Raises `RpcError` once the caller could no longer make the call; the future then fails with it.
        """
        self._rechecks[future] = recheck

    async def check_some(self) -> None:
        """Check some waits. Call this periodically."""
        if not self._unchecked:
            self._unchecked = self._rechecks.keyrefs()
        for number in range(1, len(self._rechecks) // ROUNDS + sizes.CALLERS_CHECKED_PER_SLICE):
            if not self._unchecked:
                return
            if number % sizes.CALLERS_CHECKED_PER_SLICE == 0:
                await asyncio.sleep(0)
            future = self._unchecked.pop()()
            if future is None or future.done():
                continue
            try:
                # Still there: the future is held by a local name now, so the weak key cannot vanish.
                self._rechecks[future]()
            except RpcError as refused:
                future.set_exception(refused)
                future.exception()  # not logged as unread if the call is cancelled at this moment
