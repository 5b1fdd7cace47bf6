"""The leader's link to the daemon: events are sent in order, and every wait is recorded.

The record of waits is compared with the daemon's counters at the end of the run. A real broker does not need it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable

from purgatory_client import AsyncClient, Result
from purgatory_client.events import Event

GIVEN_UP = "given up"
"""Cancelled because its caller disconnected. The daemon counts it as cancelled, or by the outcome it just had."""


class EventQueue:
    """Sends events to the daemon in the order of `push`. The client combines them into few messages."""

    def __init__(self, client: AsyncClient, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._last: asyncio.Task[None] | None = None

    def push(self, *events: Event) -> None:
        """Send events without waiting. A refusal fails the task group: the daemon's view would differ from ours."""
        self._last = self._group.create_task(self._send(events))

    async def applied(self) -> None:
        """Wait until the daemon has applied every event pushed before this call."""
        if self._last is not None:
            # Shielded: cancelling the caller must not cancel the sending of an event.
            await asyncio.shield(self._last)

    async def _send(self, events: tuple[Event, ...]) -> None:
        (await self._client.advance_many(events)).raise_for_refusals()


class WaitLedger:
    """Counts started waits by kind, and ended waits by kind and outcome."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()

    async def record(self, kind: str, wait: Awaitable[Result]) -> Result:
        self.started[kind] += 1
        outcome = GIVEN_UP
        try:
            result = await wait
            outcome = result.outcome.name.lower()
        finally:
            self.ended[kind, outcome] += 1
        return result

    @property
    def open_count(self) -> int:
        """Waits that have not ended."""
        return self.started.total() - self.ended.total()
