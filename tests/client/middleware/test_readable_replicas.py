"""The servers from which a request may read: in the results of waits, and for routers of an application."""

from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client
from purgatory_client.middleware import asgi, exchange, readable_replicas
from purgatory_client.results import Result
from purgatory_client.sources.position_tokens import Positions

from purgatory.service.access.tokens import add_token
from tests.client.middleware.test_middleware import App, both, visiting
from tests.kit.daemon import DaemonProcess, access_flags
from tests.kit.proxy import BOTH, FaultyProxy

SOURCE = "3e11fa47-71ca-11e1-9e33-000000000001"


MARKS = {
    "pg/main/any": 12, "pg/main/r1": 12, "pg/main/r2": 9, "pg/main/slot:s1": 12, "pg/other/any": 12,
    "mysql/main/any/0": 7, "mysql/main/any/1": 8, "mysql/main/r1/0": 7, "mysql/main/r1/1": 7, "mysql/main/r2/0": 7,
    "mysql/main/r2/1": 8, f"mysql/main/r3/{SOURCE}": 9, "kafka/main/any-0": 0,
}  # fmt: skip


async def report(client: AsyncClient) -> None:
    for name, offset in MARKS.items():
        await client.advance(name, high_watermark=offset)


async def test_servers_that_have_the_positions_are_found(client: AsyncClient) -> None:
    await report(client)
    cases = [
        ({"pg/main/any": 10}, {"pg/main": {"r1"}}),
        ({"pg/main/any": 9}, {"pg/main": {"r1", "r2"}}),
        ({"pg/main/r1": 10, "pg/main/r2": 9}, {"pg/main": {"r1"}}),  # r2 is not known to have 10
        ({"pg/main/any": 9, "pg/main/r1": 10}, {"pg/main": {"r1"}}),
        ({"mysql/main/any/0": 7, "mysql/main/any/1": 8}, {"mysql/main": {"r2"}}),
        ({f"mysql/main/r3/{SOURCE}": 9, "kafka/main/any-0": 0}, {"mysql/main": {"r3"}}),
    ]
    for positions, servers in cases:
        result = await client.wait_for(Positions(positions), timeout=0)
        assert result.satisfied
        assert await client.reached_on(result) == servers
    late = await client.wait_for(Positions({"pg/main/any": 13}), timeout=0)
    assert await client.reached_on(late) == {}


def test_blocking_client_finds_the_servers_as_well(looking: Client) -> None:
    looking.advance("redis/main/r1", high_watermark=5)
    assert looking.reached_on(looking.produce({"redis/main/r1": 5}, timeout=0)) == {"redis/main": {"r1"}}


@both
async def test_request_reads_from_the_replicas_that_have_its_writes(app: App, client: AsyncClient) -> None:
    await report(client)
    async with visiting(app, client.address, timeout=0, on_timeout="serve") as visit:
        for positions, servers in [
            ({"pg/main/any": 10}, b"r1"),
            ({"pg/main/any": 9}, b"r1 r2"),
            ({"pg/main/r3": 0}, b"r1 r2"),  # not reached, so all of them may be stale
            ({"pg/other/any": 10}, b"r1 r2"),
        ]:
            answer = await visit("GET", "/read", Positions(positions).token)
            assert answer.body == b"read from " + servers
    assert readable_replicas("pg/main", ["r1", "r2"]) == ["r1", "r2"]


@both
async def test_service_that_may_not_observe_reads_from_the_primary(app: App, tmp_path: Path) -> None:
    """Which replica has the write is then unknown, although one has."""
    policy = '[[grant]]\nto = ["shop"]\nroles = ["wait", "advance"]\ntopics = ["*"]\n'
    flags = access_flags(tmp_path, policy)
    token = add_token(tmp_path / "tokens", "shop")
    with DaemonProcess(tmp_path / "daemon", flags) as daemon:
        async with AsyncClient(daemon.address, token=token) as client:
            await report(client)
        async with visiting(app, daemon.address, token=token) as visit:
            answer = await visit("GET", "/read", Positions({"pg/main/any": 10}).token)
    assert (answer.status, answer.body) == (200, b"read from primary")


async def test_request_whose_servers_are_not_listed_reads_from_the_primary(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is cut once the wait has ended, which is no reason to refuse the request."""
    monkeypatch.setattr(exchange, "SERVERS_S_MAX", 0.1)
    await report(client)
    async with FaultyProxy(client.address) as proxy:

        class CutOff(AsyncClient):
            async def reached_on(self, result: Result) -> dict[str, frozenset[str]]:
                proxy.hold(BOTH)
                return await super().reached_on(result)

        async with CutOff(proxy.address) as cut_off:
            middleware = asgi.ReadYourWrites(None, cut_off)
            admitted = await middleware.admit(cut_off, [Positions({"pg/main/any": 10}).token])
            proxy.heal()
    assert isinstance(admitted, exchange.Exchange)
    assert (admitted.readable_replicas("pg/main", ["r1"]), admitted.stale) == ([], "")
    assert middleware.counts == {"reached": 1}
