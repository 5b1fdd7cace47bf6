"""The daemon as the leader uses it: events go to it in order, and each wait at it is entered in a ledger.

The ledger is compared with the daemon's own counters at the end of the run. A broker needs no ledger.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable

from purgatory_client import AsyncClient, Result
from purgatory_client.events import Event

GIVEN_UP = "given up"
"""Cancelled because its caller has gone. The daemon counts it as cancelled, or as what it became just before."""


class EventQueue:
    """Events to the daemon. The client sends them in the order in which they are pushed, many in a message."""

    def __init__(self, client: AsyncClient, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._last: asyncio.Task[None] | None = None

    def push(self, *events: Event) -> None:
        """Send events without waiting. A refusal ends the group: the daemon's view would differ from the leader's."""
        self._last = self._group.create_task(self._send(events))

    async def applied(self) -> None:
        """Return when the daemon has applied every event pushed before this call."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def _send(self, events: tuple[Event, ...]) -> None:
        (await self._client.advance_many(events)).raise_for_refusals()


class WaitLedger:
    """How many waits began, and how each ended: by kind and outcome, with the milliseconds from asking to answer.

    A kind is the daemon's name for it, with who asked behind a slash where that says more: "fetch/follower".
    """

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended_ms: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)

    async def entered(self, kind: str, wait: Awaitable[Result]) -> Result:
        """Await a wait and enter its start and its end."""
        self.started[kind] += 1
        begun = time.perf_counter()
        outcome = GIVEN_UP
        try:
            result = await wait
            outcome = result.outcome.name.lower()
        finally:
            waited_ms = round((time.perf_counter() - begun) * 1_000, 3)
            self.ended_ms[kind].setdefault(outcome, []).append(waited_ms)
        return result

    def ended(self, kind: str, outcome: str) -> int:
        return len(self.ended_ms[kind].get(outcome, ()))

    @property
    def open_count(self) -> int:
        """Waits that have not ended."""
        return self.started.total() - sum(len(waits) for kind in self.ended_ms.values() for waits in kind.values())

    def to_json(self) -> bytes:
        """For another process."""
        return json.dumps([self.started, self.ended_ms]).encode()

    def add_json(self, data: bytes) -> None:
        """Add the ledger of another process to this one."""
        started, ended_ms = json.loads(data)
        self.started.update(started)
        for kind, outcomes in ended_ms.items():
            for outcome, waits in outcomes.items():
                self.ended_ms[kind].setdefault(outcome, []).extend(waits)
