"""The callers of pending unary waits: a wait ends when its caller could not make the call any more.

A wait may be pending for hours, and nothing is read from its caller meanwhile. All pending waits are checked in turn,
an eighth of them at a time, as checking a token takes some microseconds.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary

from purgatory.service.errors import RpcError

ROUNDS: Final = 8
"""Calls of `check_some` that check every wait once."""
CHECKED_PER_SLICE: Final = 100


class WaitingCallers:
    """A wait is known by the future of its result, and is forgotten with it."""

    def __init__(self) -> None:
        self._rechecks: Final[WeakKeyDictionary[asyncio.Future[Any], Callable[[], None]]] = WeakKeyDictionary()
        self._unchecked: list[ReferenceType[asyncio.Future[Any]]] = []
        """Those of this round that are left."""

    def add(self, future: asyncio.Future[Any], recheck: Callable[[], None]) -> None:
        """`recheck` raises `RpcError` once the caller could not make the call any more; the future then does."""
        self._rechecks[future] = recheck

    async def check_some(self) -> None:
        """Call this now and then."""
        if not self._unchecked:
            self._unchecked = self._rechecks.keyrefs()
        for number in range(1, len(self._rechecks) // ROUNDS + CHECKED_PER_SLICE):
            if not self._unchecked:
                return
            if number % CHECKED_PER_SLICE == 0:
                await asyncio.sleep(0)
            future = self._unchecked.pop()()
            if future is None or future.done():
                continue
            try:
                self._rechecks[future]()
            except RpcError as refused:
                future.set_exception(refused)
                future.exception()  # not logged as unread if the call is cancelled at this moment
