"""What a source hands its observations to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from purgatory_sources.feed.observation import MarkName, Observation
from purgatory_sources.feed.reports import SourceState, StaleMarks, ToldMark


class Feed:
    """Brings what one source sees to every daemon. Lives on one loop; only the `_threadsafe` forms may be called from
    other threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._demand: frozenset[MarkName] = frozenset()
        self._demand_changed: Final = asyncio.Event()
        self._callbacks: Final[list[Callable[[frozenset[MarkName]], None]]] = []

    @property
    def demand(self) -> frozenset[MarkName]:
        """What somebody waits on at any of the daemons."""
        return self._demand

    async def demand_changed(self) -> None:
        """Wait for the next change of `demand`."""
        self._demand_changed.clear()
        await self._demand_changed.wait()

    def on_demand(self, callback: Callable[[frozenset[MarkName]], None]) -> None:
        """Have this called on the loop with the new demand, at each change."""
        self._callbacks.append(callback)

    def observe(self, observations: Iterable[Observation]) -> None:
        """Hand over what was seen. The newest value of each name counts; nothing is waited for."""
        raise NotImplementedError

    def observe_threadsafe(self, observations: Sequence[Observation]) -> None:
        """The same from any thread."""
        self._loop.call_soon_threadsafe(self.observe, observations)

    def report(self, state: SourceState, reason: str = "", stale: Sequence[StaleMarks] = (), lag_ms: int = 0) -> None:
        """Say how the source fares. It is repeated to the daemons every second until the next one replaces it."""
        raise NotImplementedError

    def report_threadsafe(
        self, state: SourceState, reason: str = "", stale: Sequence[StaleMarks] = (), lag_ms: int = 0
    ) -> None:
        """The same from any thread."""
        self._loop.call_soon_threadsafe(self.report, state, reason, stale, lag_ms)

    def told(self, topic_prefix: str) -> Mapping[MarkName, ToldMark]:
        """What the daemons know of the marks under this prefix, as read back from them when they were connected and as
        told since. A mark that is there and that the source does not find is to be observed as gone.
        """
        raise NotImplementedError
