"""Ready gates with shards: any shard can be asked for a gate, and its own one answers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
from purgatory_client.aio import AsyncClient
from purgatory_client.views import OperationOrder

from purgatory.cli.all_shards import over_shards
from purgatory.service.access.tokens import add_token
from tests.fleet.shard_daemons import session_of, start_shards
from tests.kit.daemon import RunDaemon, access_flags
from tests.ready.gate_kit import ask, log_source

READY, WAITING = HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE


def gate_of(shard: int) -> str:
    return session_of(shard, name="ready/web").removeprefix("ready/")


async def test_gate_asked_at_both_shards(run_daemon: RunDaemon) -> None:
    """A gate has one target, wherever it is asked for first and later, alone or among others, and it can be listed and
    closed from both shards.
    """
    daemons = await start_shards(run_daemon)
    addresses = [daemon.http_address for daemon in daemons]
    names = [gate_of(0), gate_of(1)]
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(log_source(daemon.address, 10)) for daemon in daemons]
        for source in sources:
            await source.processed(4)
        for name in names:  # for each gate, its own shard is not always the first
            assert await ask(addresses[0], name=name) == (WAITING, {"name": name, "ready": False, "lag": 6})
        for source in sources:
            source.ends[0] = 100
        for address in addresses:
            for name in names:
                assert (await ask(address, name=name))[1]["lag"] == 6
            status, answer = await ask(address, names=",".join([*names, names[0]]))
            assert (status, [(one["name"], one["lag"]) for one in answer["gates"]]) == (
                WAITING,
                [(names[0], 6), (names[1], 6), (names[0], 6)],
            )
        for source in sources:
            await source.processed(10)
        for address in addresses:
            assert [(await ask(address, name=name))[0] for name in names] == [READY, READY]
            assert (await ask(address, names=",".join(names)))[0] == READY
        for daemon, name in zip(daemons, reversed(names), strict=True):
            async with AsyncClient(daemon.address) as client:
                await client.close_session(f"ready/{name}")
        assert [(await ask(address, name=names[0]))[1]["lag"] for address in addresses] == [90, 90]


async def test_listing_of_a_gate_asks_its_shard_from_both(run_daemon: RunDaemon) -> None:
    daemons = await start_shards(run_daemon)
    session_id = f"ready/{gate_of(1)}"
    async with log_source(daemons[1].address, 10):
        await ask(daemons[0].http_address, name=gate_of(1))
        for daemon in daemons:
            async with AsyncClient(daemon.address) as client:
                shards = await over_shards(client)
                assert [one.session_id async for one in shards.operations(10, session_id=session_id)] == [session_id]
                ranked = await shards.ranked_operations(OperationOrder.LEAST_REMAINING, limit=10, session_id=session_id)
                assert ranked.matching == 1


async def test_gate_whose_shard_is_down_is_not_ready_and_says_why(run_daemon: RunDaemon) -> None:
    [daemon] = await start_shards(run_daemon, count=1)
    async with log_source(daemon.address, 0):
        status, gate = await ask(daemon.http_address, name=gate_of(1))
        assert (status, gate["ready"]) == (WAITING, False)
        assert gate["reason"].startswith("its shard, at http://127.0.0.1:")
        status, answer = await ask(daemon.http_address, names=f"{gate_of(0)},{gate_of(1)}")
        assert (status, [gate["ready"] for gate in answer["gates"]]) == (WAITING, [True, False])


@pytest.mark.parametrize("urls", [False, True])
async def test_gate_that_is_not_passed_on(run_daemon: RunDaemon, urls: bool) -> None:
    """Where the addresses of other shards are not known, and in a request that was passed on already, a gate of another
    shard is refused with its shard, and does not come to exist.
    """
    [daemon] = await start_shards(run_daemon, count=1, has_urls=urls)
    headers = {"purgatory-passed-on": "1"} if urls else {}
    async with (
        aiohttp.ClientSession(f"http://{daemon.http_address}", headers=headers) as http,
        http.get(f"/v1/ready?name={gate_of(1)}&topics=orders") as answer,
    ):
        assert answer.status == HTTPStatus.BAD_REQUEST
        assert "belongs to shard 1, at 127.0.0.1:" in (await answer.json())["message"]
    async with AsyncClient(daemon.address) as client:
        assert (await client.status()).sessions == 0


async def test_shard_of_a_gate_identifies_the_caller_by_its_token(run_daemon: RunDaemon, tmp_path: Path) -> None:
    flags = access_flags(
        tmp_path,
        'loopback_principal = "root"\n'
        '[[grant]]\nto = ["root", "billing"]\nroles = ["wait", "advance", "observe"]\ntopics = ["*"]\n',
    )
    token = add_token(tmp_path / "tokens", "billing")
    daemons = await start_shards(run_daemon, *flags)
    name = gate_of(1)
    async with (
        log_source(daemons[1].address, 10) as source,
        aiohttp.ClientSession(
            f"http://{daemons[0].http_address}", headers={"Authorization": f"Bearer {token}"}
        ) as billing,
    ):
        assert (await ask(daemons[0].http_address, name=name))[1]["lag"] == 10
        source.ends[0] = 20
        async with billing.get(f"/v1/ready?name={name}&group=billing&topics=orders") as answer:
            assert (await answer.json())["lag"] == 20, "a gate of its own"
        async with billing.get(f"/v1/ready?name={name}&topics=orders") as answer:
            assert answer.status == HTTPStatus.BAD_REQUEST
            assert "belongs to a gate that waits for other marks" in (await answer.json())["message"]
