"""Telling the daemon what happened: events in order; what gathers while a batch is on its way is the next batch."""

from __future__ import annotations

import asyncio
from collections import deque

from purgatory_client import AsyncClient
from purgatory_client.events import Event


class EventRefused(Exception):
    """The daemon refused an event. The leader's view and the daemon's would differ from here on, so the leader ends."""


class Marks:
    """A queue of events with one sender. `push` never waits; `told` waits until all pushed so far have arrived."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._pushed = 0
        self._told = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def push(self, *events: Event) -> None:
        """Queues events; they reach the daemon in this order."""
        self._events.extend(events)
        self._pushed += len(events)
        self._wake.set()

    async def told(self) -> None:
        """Returns when the daemon has applied every event pushed before this call."""
        if self._told >= self._pushed:
            return
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._pushed, arrived))
        await arrived

    async def run(self) -> None:
        """Sends what is pushed, for ever. EventRefused, or a client error: the caller cannot go on."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._events = self._events, []
            receipt = await self._client.advance_many(batch)
            if receipt.refusals:
                refusal = receipt.refusals[0]
                raise EventRefused(f"{batch[refusal.index]}: {refusal.message}")
            self._told += len(batch)
            while self._waiting and self._waiting[0][0] <= self._told:
                arrived = self._waiting.popleft()[1]
                if not arrived.done():
                    arrived.set_result(None)
