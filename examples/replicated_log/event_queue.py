"""Sends events to the daemon in order. Those that are pushed while a batch is under way form the next batch."""

import asyncio
from collections import deque

from purgatory_client import AsyncClient
from purgatory_client.events import Event


class RefusedByDaemon(Exception):
    """The daemon refused an event. From here on its view would differ from the leader's, so the leader ends."""


class EventQueue:
    """A queue of events with one sender. `push` never waits; `applied` waits for all that were pushed so far."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._pushed = 0
        self._applied_count = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def push(self, *events: Event) -> None:
        self._events.extend(events)
        self._pushed += len(events)
        self._wake.set()

    async def applied(self) -> None:
        """Returns when the daemon has applied every event pushed before this call."""
        if self._applied_count >= self._pushed:
            return
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._pushed, arrived))
        await arrived

    async def run(self) -> None:
        """Sends what is pushed until cancelled. Raises RefusedByDaemon or a client error: the caller cannot go on."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._events = self._events, []
            receipt = await self._client.advance_many(batch)
            if receipt.refusals:
                refusal = receipt.refusals[0]
                raise RefusedByDaemon(f"{batch[refusal.index]}: {refusal.message}")
            self._applied_count += len(batch)
            while self._waiting and self._waiting[0][0] <= self._applied_count:
                arrived = self._waiting.popleft()[1]
                if not arrived.done():
                    arrived.set_result(None)
