"""Waits at the daemon on one partition, and a ledger of them: each must end, once.

The ledger is compared with the daemon's own counters at the end of the run. A broker needs only the calls in `Waits`.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Final

from purgatory_client import AsyncClient, Result

MS_PER_SECOND: Final = 1_000
GIVEN_UP: Final = "given up"
"""Cancelled because its caller has gone. The daemon counts it as cancelled, or as what it became just before."""


class WaitEndedTwice(Exception):
    """A wait ended a second time."""


class WaitLedger:
    """Which waits began, and how each ended: by kind and outcome, with the milliseconds from asking to answer.

    A kind is the daemon's name for it, with who asked behind a slash where that says more: "fetch/follower".
    """

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended_ms: dict[tuple[str, str], list[float]] = {}
        self._numbers = itertools.count()
        self._open: dict[int, str] = {}

    def start(self, kind: str) -> int:
        number = next(self._numbers)
        self._open[number] = kind
        self.started[kind] += 1
        return number

    def end(self, number: int, outcome: str, waited_ms: float) -> None:
        """Notes the end of a wait. WaitEndedTwice: it had one."""
        kind = self._open.pop(number, None)
        if kind is None:
            raise WaitEndedTwice(f"wait {number} has ended twice, now as {outcome}")
        self.ended_ms.setdefault((kind, outcome), []).append(round(waited_ms, 3))

    def ended(self, kind: str, outcome: str) -> int:
        return len(self.ended_ms.get((kind, outcome), ()))

    @property
    def open_count(self) -> int:
        """Waits that have not ended."""
        return len(self._open)

    def to_json(self) -> bytes:
        """For another process. Call it when nothing is open."""
        ended = [[kind, outcome, waits] for (kind, outcome), waits in self.ended_ms.items()]
        return json.dumps({"started": self.started, "ended": ended, "open": self.open_count}).encode()

    def add_json(self, data: bytes) -> None:
        other = json.loads(data)
        self.started.update(other["started"])
        for kind, outcome, waits in other["ended"]:
            self.ended_ms.setdefault((kind, outcome), []).extend(waits)
        for _ in range(other["open"]):
            self._open[next(self._numbers)] = "open in another process"


class Waits:
    """Waits at the daemon, each entered in the ledger."""

    def __init__(self, client: AsyncClient, partition: str, ledger: WaitLedger) -> None:
        self._client = client
        self._partition = partition
        self._ledger = ledger

    async def produce(self, required_offset: int, timeout_ms: int, leader_epoch: int) -> Result:
        """Until every in-sync replica has all below `required_offset`."""
        return await self._entered(
            "produce",
            self._client.produce(
                {self._partition: required_offset},
                timeout=timeout_ms / MS_PER_SECOND,
                leader_epochs={self._partition: leader_epoch},
            ),
        )

    async def fetch(self, offset: int, timeout_ms: int, min_bytes: int, replica_id: int | None = None) -> Result:
        """Until `min_bytes` can be read from `offset`: a follower to the log end, others to the high watermark."""
        return await self._entered(
            "fetch/consumer" if replica_id is None else "fetch/follower",
            self._client.fetch(
                {self._partition: offset},
                timeout=timeout_ms / MS_PER_SECOND,
                min_bytes=min_bytes,
                replica_id=replica_id,
                isolation="read_uncommitted",
            ),
        )

    async def delete_records(self, offset: int, timeout_ms: int) -> Result:
        """Until no live replica's log starts below `offset`."""
        return await self._entered(
            "delete_records",
            self._client.delete_records({self._partition: offset}, timeout=timeout_ms / MS_PER_SECOND),
        )

    async def signal(self, key: str, count: int, timeout_ms: int) -> Result:
        """Until `key` has been signalled `count` times in all."""
        return await self._entered("signal", self._client.signal({key: count}, timeout=timeout_ms / MS_PER_SECOND))

    async def _entered(self, kind: str, wait: Awaitable[Result]) -> Result:
        number = self._ledger.start(kind)
        begun = time.perf_counter()
        try:
            result = await wait
        except asyncio.CancelledError:
            self._ledger.end(number, GIVEN_UP, (time.perf_counter() - begun) * MS_PER_SECOND)
            raise
        self._ledger.end(number, result.outcome.name.lower(), (time.perf_counter() - begun) * MS_PER_SECOND)
        return result
