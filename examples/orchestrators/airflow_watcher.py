"""Airflow: a DAG runs whenever a mark has moved, without a task or a sensor that polls.

    orders = Asset("orders", watchers=[AssetWatcher(name="billed", trigger=MarkMoved("kafka/billing/orders-3", 1000))])

    @dag(schedule=[orders])
    def invoices(): ...

The trigger fires once at least `every` more records (or bytes, or transactions) are there, with the positions before
and after. All triggers of a triggerer share one connection and session. The position is kept in the state of the asset
(Airflow 3.3 or newer), so a restarted triggerer repeats nothing; with one that is killed between an event and its
position, the event may come twice, from the same position. Without Airflow this module can be imported, and the trigger
runs.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Final

from purgatory_client import AsyncClient
from purgatory_client.errors import NotFound, PurgatoryClientError

try:
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent  # type: ignore[import-not-found]
except ModuleNotFoundError:

    class BaseEventTrigger:  # type: ignore[no-redef]
        """As far as it is needed here."""

        asset_state_store: Any = None

    TriggerEvent = dict

RETRY_S: Final = 5.0
WAIT_S: Final = 86_400
_shared: dict[asyncio.AbstractEventLoop, AsyncClient] = {}


def client() -> AsyncClient:
    """The client of this event loop, which is the triggerer's. It ends with the process."""
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        _shared[loop] = AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"), name="airflow")
    return _shared[loop]


class MarkMoved(BaseEventTrigger):  # type: ignore[misc]
    """Fires whenever the mark has moved by `every` or more."""

    def __init__(self, mark: str, every: int = 1) -> None:
        super().__init__()
        self.mark, self.every = mark, every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.MarkMoved", {"mark": self.mark, "every": self.every}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        key, store = f"purgatory {self.mark}", self.asset_state_store
        position = None if store is None else await store.aget(key)
        while True:
            try:
                if position is None:  # the first start: what is there already is no news
                    position = await self._present()
                    await self._keep(key, position)
                result = await client().produce({self.mark: position + self.every}, timeout=WAIT_S)
            except PurgatoryClientError:  # the daemon is away, or refuses for now
                await asyncio.sleep(RETRY_S)
                continue
            reached = result.partitions[self.mark].reached_offset
            if result.satisfied:
                yield TriggerEvent({"mark": self.mark, "from": position, "to": reached})
                position = reached
                await self._keep(key, position)

    async def _present(self) -> int:
        try:
            return max(0, (await client().partition(self.mark)).high_watermark)
        except NotFound:
            return 0

    async def _keep(self, key: str, position: int) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(key, position)
