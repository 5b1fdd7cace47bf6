"""Airflow: a DAG runs whenever a mark has moved, without a task or a sensor that polls.

    from airflow.sdk import Asset, AssetWatcher, dag
    from airflow_watcher import MarkMoved

    orders = Asset("orders", watchers=[AssetWatcher(name="billed", trigger=MarkMoved("kafka/billing/orders-3", 1000))])

    @dag(schedule=[orders])
    def invoices(): ...

    invoices()

The trigger fires once at least `every` more records (or bytes, or transactions) are there. `extra["payload"]` of the
asset's event has the positions before and after: `{"mark": "kafka/billing/orders-3", "from": 3000, "to": 4000}`. All
triggers of a triggerer share one connection and session.

To install: `pip install purgatory-waits` in Airflow's environment, which also replaces its grpcio by one of the range
that this package needs. Put this file into Airflow's plugins folder, or into another folder that PYTHONPATH names for
both the DAG processor and the triggerer: they must import it by the same name. The triggerer connects to
PURGATORY_ADDRESS (127.0.0.1:7440 by default).

After a restart the trigger goes on from the position that is kept in the state of the asset (Airflow 3.3 or newer). It
is kept `KEPT_AFTER_S` after the event, and progress of that time is part of the next event:

- A triggerer that ends later than that repeats nothing.
- One that ends earlier, or whose trigger moves to another triggerer by then, may give the event twice, from the same
  position.
- One that hangs for longer, with the event unsent, and is then killed loses it. The next event shows the gap: its
  `from` is greater than the `to` of the one before. Airflow's acknowledged mode would close it, at the price of more
  code: with `shared_stream_key` and `create_shared_stream_producer`, Airflow calls `SharedStreamProducer.advance` once
  it knows whether the event is in its database. Only then would that method keep the position, in a store of its own.

Without Airflow this module can be imported, and the trigger runs.
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

    TriggerEvent = dict

RETRY_S: Final = 5.0
WAIT_S: Final = 86_400
# Airflow only queues an event when it is fired, and sends its queue about once a second. A position that is kept at
# once may outlive an event that was never sent.
KEPT_AFTER_S: Final = 5.0
_shared: dict[asyncio.AbstractEventLoop, AsyncClient] = {}


def client() -> AsyncClient:
    """The client of this event loop, which is the triggerer's. It ends with the process."""
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        _shared[loop] = AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"), name="airflow")
    return _shared[loop]


class MarkMoved(BaseEventTrigger):  # type: ignore[misc]
    """Fires whenever the mark has moved by `every` or more."""

    asset_state_store: Any = None  # before Airflow 3.3 there is none

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
                await asyncio.sleep(KEPT_AFTER_S)
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
