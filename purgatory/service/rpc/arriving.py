"""Calls whose one request is not served yet: it may be half read, which takes memory that nothing else counts."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from purgatory.service.rpc.statuses import resource_exhausted

ARRIVING_S_MAX: Final = 0.5
"""A request that takes longer may be refused when memory is short."""

MESSAGE: Final = "memory is short, and the request was not there in time; try again later"


class ArrivingCalls:
    """The tasks of these calls, in the order in which they came."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._since_s: Final[dict[asyncio.Task[Any], float]] = {}
        self._refused: Final[set[asyncio.Task[Any]]] = set()

    def __len__(self) -> int:
        return len(self._since_s)

    async def request(self, read: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - of the call's own type
        """What `read` gives, in a call's own task. Raises `CallRefused` when `refuse_late` has ended the call."""
        task = asyncio.current_task()
        if task is None:
            return await read()
        self._since_s[task] = self._now_s()
        try:
            return await read()
        except asyncio.CancelledError:
            if task not in self._refused or task.uncancel() > 0:
                raise
            # The cancelled read is given up with its call, whose status gRPC sends at once: that frees the message.
            raise resource_exhausted("memory", MESSAGE) from None
        finally:
            self._since_s.pop(task, None)
            self._refused.discard(task)

    def refuse_late(self) -> None:
        """Ends the calls whose request should have been there by now."""
        late_s = self._now_s() - ARRIVING_S_MAX
        late = [task for task, since_s in self._since_s.items() if since_s <= late_s]
        for task in late:
            del self._since_s[task]
            self._refused.add(task)
            task.cancel()
