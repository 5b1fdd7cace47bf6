"""A client that is used in several event loops, as when it is created while a module is imported."""

import asyncio
from pathlib import Path

import pytest
from purgatory_client import AsyncClient
from purgatory_client.errors import WrongEventLoop

from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending


def test_client_connects_again_when_its_loop_is_closed(daemon: DaemonProcess) -> None:
    client = AsyncClient(daemon.address)

    async def leave_a_wait() -> str:
        assert (await client.advance("a-0", high_watermark=1)).unchanged == 0
        waiting = asyncio.create_task(client.produce({"never-0": 1}, timeout=600))
        await until_pending(client, 1)
        assert not waiting.done()
        return client.session_id

    async def go_on() -> str:
        assert (await client.produce({"a-0": 1}, timeout=600)).satisfied
        await until_pending(client, 0)
        assert (await client.advance("a-0", high_watermark=1)).unchanged == 1
        return client.session_id

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(leave_a_wait())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()
    assert asyncio.run(go_on()) == session
    asyncio.run(client.close())


def test_client_in_two_loops_at_once_is_refused(daemon: DaemonProcess) -> None:
    async def use_in_two() -> None:
        async with AsyncClient(daemon.address) as client:
            await client.status()
            for call in (client.status, lambda: client.signal(["k"]), lambda: client.signal_key("k"), client.close):
                with pytest.raises(WrongEventLoop, match="create an AsyncClient in each"):
                    await asyncio.to_thread(asyncio.run, call())
            await client.status()

    asyncio.run(use_in_two())


def test_client_with_an_outbox_stays_in_its_loop(daemon: DaemonProcess, tmp_path: Path) -> None:
    """The thread that writes its file reports to that loop."""
    client = AsyncClient(daemon.address, outbox=tmp_path / "outbox.db")
    assert asyncio.run(client.recovered()) == []
    with pytest.raises(WrongEventLoop, match="create another one"):
        asyncio.run(client.recovered())
    asyncio.run(client.close())
    asyncio.run(AsyncClient(daemon.address, outbox=tmp_path / "outbox.db").close())  # the file is free
