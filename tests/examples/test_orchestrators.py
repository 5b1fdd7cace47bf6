"""The trigger for Airflow, run as its triggerer does. Airflow itself is not needed."""

import asyncio
from typing import Any

import pytest
from purgatory_client import AsyncClient

from examples.orchestrators import airflow_watcher
from examples.orchestrators.airflow_watcher import MarkMoved
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, eventually, until_pending


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


async def test_restarted_watcher_repeats_an_event_until_its_position_is_kept(
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
        for kept_after_s, kept in ((PATIENCE_S, 7), (0, 20)):  # the first is killed before it keeps it
            monkeypatch.setattr(airflow_watcher, "KEPT_AFTER_S", kept_after_s)
            events = recreated("asset-0", 10, first_state)
            assert await watching[0] == await anext(events) == {"mark": "asset-0", "from": 7, "to": 20}
            await asyncio.wait([following := asyncio.ensure_future(anext(events))], timeout=0.01)
            await eventually(lambda: first_state == {"purgatory asset-0": kept})  # noqa: B023 - awaited at once
            following.cancel()
        watching[1].cancel()
        await client.advance("asset-0", high_watermark=31)
        assert await anext(recreated("asset-0", 10, first_state)) == {"mark": "asset-0", "from": 20, "to": 31}
        await airflow_watcher.client().close()
