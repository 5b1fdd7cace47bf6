"""Waits across lost connections and restarted daemons: each ends, and none is lost. Pauses between attempts."""

import asyncio
import random
from pathlib import Path

import grpc.aio
import pytest
from purgatory_client import AsyncClient, Outcome, Result, batches, errors
from purgatory_client.session.backoff import Backoff

from purgatory.v1 import purgatory_service_pb2
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.client.until import until_pending
from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess
from tests.daemon_simulation.faulty_proxy import FaultyProxy
from tests.service.serving import eventually

pytestmark = pytest.mark.sockets

LONG = 120.0
TOTAL = 3_000
IN_COLUMNS = 1_000
NEVER = 300
"""The number of single waits that are never satisfied, and expire."""


@pytest.mark.slow
async def test_thousands_of_waits_through_a_connection_that_breaks(daemon: DaemonProcess) -> None:
    """Connections are dropped at random during 3,000 waits: each ends once, with the right outcome."""
    generator = random.Random(8131)
    singles = TOTAL - IN_COLUMNS
    async with FaultyProxy(daemon.address) as proxy, AsyncClient(daemon.address) as direct:
        async with AsyncClient(proxy.address) as client:
            ends = [0] * singles

            async def wait_for(place: int) -> Result:
                offset, timeout = (10**9, 1.0) if place < NEVER else (place + 1, LONG)
                result = await client.produce({"orders-3": offset}, timeout=timeout)
                ends[place] += 1
                return result

            tasks: list[asyncio.Task[Result]] = []
            offsets = list(range(1, IN_COLUMNS + 1))
            many = asyncio.create_task(client.produce_many(["orders-4"], offsets=offsets, timeouts_ms=[120_000]))
            drops = 0
            for step in range(30):
                chunk = range(len(tasks), min(singles, len(tasks) + 100))
                tasks.extend(asyncio.create_task(wait_for(place)) for place in chunk)
                await asyncio.sleep(generator.uniform(0, 0.05))
                if generator.random() < 0.4:
                    drops += proxy.drop_all()
                await direct.advance("orders-3", high_watermark=min(singles, (step + 1) * singles // 30))
                await direct.advance("orders-4", high_watermark=(step + 1) * IN_COLUMNS // 30)
            await direct.advance("orders-4", high_watermark=IN_COLUMNS)
            results = await asyncio.gather(*tasks)
            answer = await many
        assert drops >= 3, "the proxy has hardly dropped anything; this run shows nothing"
        assert ends == [1] * singles
        assert [result.outcome for result in results[:NEVER]] == [Outcome.EXPIRED] * NEVER
        assert all(result.satisfied for result in results[NEVER:])
        assert answer.count(Outcome.SATISFIED) == IN_COLUMNS
        produce = (await direct.status()).kinds[0]
        assert (produce.registered, produce.pending) == (TOTAL, 0)
        assert (produce.satisfied, produce.expired) == (TOTAL - NEVER, NEVER)


async def test_waits_outlive_a_daemon_that_forgets(tmp_path: Path) -> None:
    """An in-memory daemon that is restarted after a crash gets every pending wait again, with its remaining time."""
    first = DaemonProcess(tmp_path / "first")
    async with FaultyProxy(first.address) as proxy, AsyncClient(proxy.address) as client:
        waiting = [asyncio.create_task(client.produce({f"p-{i}": 1}, timeout=LONG)) for i in range(100)]
        many = asyncio.create_task(client.produce_many(["p-0"], offsets=[1] * 100, timeouts_ms=[120_000]))
        await until_pending(client, 200)
        await client.advance("p-7", high_watermark=1)
        assert (await waiting[7]).satisfied
        first.kill()
        second = DaemonProcess(tmp_path / "second")
        try:
            proxy.target = second.address
            async with AsyncClient(second.address) as direct:
                await until_pending(direct, 199)
                longest = max([one.remaining async for one in direct.operations()])
                assert longest < LONG
                for i in range(100):
                    await direct.advance(f"p-{i}", high_watermark=1)
                assert all(result.satisfied for result in await asyncio.gather(*waiting))
                assert (await many).satisfied
        finally:
            second.kill()


async def test_a_silent_connection_is_replaced(start_daemon: StartDaemon) -> None:
    """A connection without a message for three heartbeat intervals is replaced, although it never broke."""
    daemon = start_daemon("--session-heartbeat-interval-ms", "100")
    async with (
        FaultyProxy(daemon.address) as proxy,
        AsyncClient(daemon.address) as direct,
        AsyncClient(proxy.address) as client,
    ):
        waiting = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
        await until_pending(direct, 1)
        accepted = proxy.accepted
        proxy.silent = True
        await direct.advance("orders-3", high_watermark=42)
        await eventually(lambda: proxy.accepted > accepted, "the client has come back")
        proxy.silent = False
        proxy.drop_all()
        assert (await waiting).satisfied


async def test_an_idle_session_stays_connected(start_daemon: StartDaemon) -> None:
    """Heartbeats keep an idle session: after several intervals the same connection still works."""
    daemon = start_daemon("--session-heartbeat-interval-ms", "200")
    async with FaultyProxy(daemon.address) as proxy, AsyncClient(proxy.address) as client:
        assert (await client.produce({"orders-3": 42}, timeout=1.5)).outcome is Outcome.EXPIRED
        assert proxy.accepted == 1


async def test_a_session_that_is_taken_over_says_so(daemon: DaemonProcess) -> None:
    """When another stream opens the same session, waits end with SessionTakenOver and the client does not reconnect."""
    async with AsyncClient(daemon.address) as client, grpc.aio.insecure_channel(daemon.address) as channel:
        waiting = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
        await until_pending(client, 1)
        call = PurgatoryServiceStub(channel).Session()
        await call.write(purgatory_service_pb2.SessionRequest(open={"session_id": client.session_id}))
        assert (await call.read()).opened.resumed
        with pytest.raises(errors.SessionTakenOver):
            await waiting
        with pytest.raises(errors.SessionTakenOver):
            await client.produce({"orders-3": 42}, timeout=LONG)
        call.cancel()


async def test_a_stranger_in_the_session_is_noticed(shared_daemon: DaemonProcess) -> None:
    """A wait whose id another client has used fails at once with an explanation; so does a batch. Later ones work."""
    async with AsyncClient(shared_daemon.address) as client, AsyncClient(shared_daemon.address) as stranger:
        assert (await client.produce({"orders-3": 42}, timeout=0)).outcome is Outcome.EXPIRED
        foreign = batches.produce(["elsewhere-0"], offsets=[1], indexes=[0])
        assert (await stranger.register(client.session_id, 1_000, foreign)).accepted == 1
        with pytest.raises(errors.OperationIdInUse, match=client.session_id):
            await client.produce({"orders-3": 42}, timeout=LONG)
        waiting = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
        await until_pending(client, 2)
        assert (await stranger.register(client.session_id, 2_000, foreign)).accepted == 1
        answer = await client.produce_many(["orders-3"], offsets=[42, 43], indexes=[0, 0])
        assert answer.outcomes == [Outcome.REFUSED, Outcome.REFUSED]
        await client.advance("orders-3", high_watermark=42)
        assert (await waiting).satisfied


async def test_no_daemon_is_given_up_after_a_while() -> None:
    """Without a daemon all pending waits raise Unavailable after `give_up_after`, and a new session begins."""
    async with FaultyProxy("127.0.0.1:1") as proxy, AsyncClient(proxy.address, give_up_after=0.3) as client:
        first_session = client.session_id
        one, many = await asyncio.gather(
            client.produce({"orders-3": 42}, timeout=LONG),
            client.produce_many(["orders-3"], offsets=[1, 2], timeouts_ms=[5_000]),
            return_exceptions=True,
        )
        assert isinstance(one, errors.Unavailable)
        assert isinstance(many, errors.Unavailable)
        assert client.pending == 0
        assert client.session_id != first_session
        with pytest.raises(errors.Unavailable):
            await client.advance("orders-3", high_watermark=1)


async def test_a_first_connection_is_given_up_with_the_longest_timeout() -> None:
    """With a wrong address, waits raise Unavailable once the timeouts of all of them are over, and not before."""
    async with FaultyProxy("127.0.0.1:1") as proxy, AsyncClient(proxy.address, give_up_after=LONG) as client:
        began_s = asyncio.get_running_loop().time()
        ended = await asyncio.gather(
            client.produce({"orders-3": 42}, timeout=0.1),
            client.produce_many(["orders-3"], offsets=[1, 2], timeouts_ms=[5, 1_500]),
            return_exceptions=True,
        )
        assert [type(one) for one in ended] == [errors.Unavailable, errors.Unavailable]
        assert asyncio.get_running_loop().time() - began_s > 1.499  # a timer may be early by the clock's resolution
        assert client.pending == 0


async def test_a_daemon_that_comes_late_still_serves(shared_daemon: DaemonProcess) -> None:
    """A wait that was submitted before the daemon could be reached is sent once it can."""
    async with FaultyProxy("127.0.0.1:1") as proxy, AsyncClient(proxy.address) as client:
        waiting = asyncio.create_task(client.signal(["k"], timeout=LONG))
        await eventually(lambda: proxy.accepted >= 2, "the client has tried twice")
        proxy.target = shared_daemon.address
        async with AsyncClient(shared_daemon.address) as direct:
            await direct.signal_key("k")
        assert (await waiting).satisfied


def test_ceilings_double_up_to_the_cap() -> None:
    """Each pause is between 0 and a ceiling that doubles until it reaches the cap."""

    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    backoff = Backoff(0.1, 0.5, Highest())
    assert [backoff.next_delay() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next_delay() == 0.1


def test_pauses_are_spread_over_the_whole_range() -> None:
    """Full jitter: clients that lost the same daemon do not reconnect at the same time."""
    generator = random.Random(8131)
    delays = [Backoff(1.0, 1.0, generator).next_delay() for _ in range(1_000)]
    assert min(delays) < 0.05
    assert max(delays) > 0.95
    assert 0.45 < sum(delays) / len(delays) < 0.55
