"""Calls that are refused because they have no valid credential, or name no method.

Anyone can make them, thousands on one connection. Refused at once, each would make room for the next, and all other
calls would wait in gRPC's one queue behind those that keep arriving. They are therefore refused at a limited rate:
until then they occupy the streams of their own connection, of which there are `limits.calls_per_connection_max`.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from purgatory.service.fair_queue import INSPECTIONS, FairQueue
from purgatory.service.transport.flood_watch import REFUSED, FloodWatch

LOGGER: Final = logging.getLogger(__name__)

PAUSE_S: Final = 0.001
"""Minimum time between two refusals."""
FLOOD: Final = 1_000
"""This many such calls in `LOG_INTERVAL_S` are logged, once."""
LOG_INTERVAL_S: Final = 10.0


class Strangers:
    """Delays such calls; at most `waiting_max` at a time, because they hold memory."""

    def __init__(
        self, queue: FairQueue, floods: FloodWatch, waiting_max: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue: Final = queue
        self._floods: Final = floods
        self._waiting_max: Final = waiting_max
        self._now_s: Final = now_s
        self._as_caller: Final = queue.join("no valid credential, or no method")
        """All of them take turns as one caller."""
        self._next: Final = asyncio.Queue[None]()
        """Holds an item when the next call may be refused."""
        self._next.put_nowait(None)
        self.waiting: Final = Counter[str]()
        """Those that wait, by connection,"""
        self._waiting_count = 0
        """and in total."""
        self._seen: Final = Counter[str]()
        """Those since `_since_s`, by connection,"""
        self._seen_count = 0
        """and in total."""
        self._since_s = now_s()

    async def turn(self, peer: str) -> None:
        """Wait until a call from this peer may be refused.

        If too many wait already, the connection with the most of them is closed, and this one is refused now.
        """
        self._see(peer)
        if self._waiting_count >= self._waiting_max:
            most, calls = self.waiting.most_common(1)[0]
            self._floods.close(
                most, REFUSED, f"{calls} of its calls wait to be refused: no valid credential, or no method"
            )
            return
        self.waiting[peer] += 1
        self._waiting_count += 1
        try:
            await self._next.get()
            asyncio.get_running_loop().call_later(PAUSE_S, self._next.put_nowait, None)
            await self._queue.turn(self._as_caller, INSPECTIONS)
        finally:
            self._waiting_count -= 1
            self.waiting[peer] -= 1
            if not self.waiting[peer]:
                del self.waiting[peer]

    def _see(self, peer: str) -> None:
        now_s = self._now_s()
        if now_s - self._since_s >= LOG_INTERVAL_S:
            self._since_s, self._seen_count = now_s, 0
            self._seen.clear()
        self._seen[peer] += 1
        self._seen_count += 1
        if self._seen_count == FLOOD:
            most, calls = self._seen.most_common(1)[0]
            LOGGER.warning(
                "%d calls without a valid credential or to unknown methods within %.1f s, over %d connections; %d of "
                "them from %s: they are refused slowly",
                FLOOD, now_s - self._since_s, len(self._seen), calls, most,
            )  # fmt: skip
