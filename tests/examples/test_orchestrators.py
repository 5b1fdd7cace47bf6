"""The trigger for Airflow, run as its triggerer does. Airflow itself is not needed."""

import asyncio
from typing import Any

import pytest
from purgatory_client import AsyncClient

from examples.orchestrators import airflow_watcher
from examples.orchestrators.airflow_watcher import MarkMoved
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending


class AssetState(dict[str, int]):
    """The state that Airflow keeps with an asset."""

    async def aget(self, key: str) -> int | None:
        return self.get(key)

    async def aset(self, key: str, value: int) -> None:
        self[key] = value


def recreated(mark: str, every: int, state: AssetState) -> Any:  # noqa: ANN401 - an asynchronous iterator
    """The events of a trigger that is created from the scheduler's stored data."""
    path, stored = MarkMoved(mark, every).serialize()
    assert path == "examples.orchestrators.airflow_watcher.MarkMoved"
    trigger = MarkMoved(**stored)
    trigger.asset_state_store = state
    return trigger.run()


async def test_restarted_watcher_repeats_nothing_and_misses_nothing(
    shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two watchers share one session, and progress from before the first start is not an event."""
    monkeypatch.setenv("PURGATORY_ADDRESS", shared_daemon.address)
    first_state, second_state = AssetState(), AssetState()
    async with AsyncClient(shared_daemon.address) as client:
        await client.advance("asset-0", high_watermark=7)
        first, second = recreated("asset-0", 10, first_state), recreated("asset-1", 1, second_state)
        watching = [asyncio.ensure_future(anext(events)) for events in (first, second)]
        await until_pending(client, 2)
        assert len({one.session_id async for one in client.operations()}) == 1
        await client.advance("asset-0", high_watermark=20)
        assert await watching[0] == {"mark": "asset-0", "from": 7, "to": 20}
        following = asyncio.ensure_future(anext(first))  # the event is stored, and the triggerer asks for the next one
        await until_pending(client, 2)
        for one in (following, watching[1]):
            one.cancel()
        await asyncio.gather(following, watching[1], return_exceptions=True)
        await client.advance("asset-0", high_watermark=31)
        again = recreated("asset-0", 10, first_state)
        assert await anext(again) == {"mark": "asset-0", "from": 20, "to": 31}
        await again.aclose()
        await airflow_watcher.client().close()
