"""The purgatory's waits on one partition, as the leader (and the run itself) asks for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final

from purgatory_client import AsyncClient, Result

from examples.replicated_log.ledger import GIVEN_UP, Ledger

MS_PER_SECOND: Final = 1_000


class Waits:
    """Waits at the daemon, each entered in the ledger. A broker needs only the calls."""

    def __init__(self, client: AsyncClient, partition: str, ledger: Ledger) -> None:
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
