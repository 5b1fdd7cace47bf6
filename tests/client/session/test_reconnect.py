"""Waits of a session that is taken over or used by another client, and without a daemon. Pauses between attempts.

Lost connections and restarted daemons are subjects of tests/conformance, tests/histories and tests/journal.
"""

import asyncio
import random

import grpc.aio
import pytest
from purgatory_client import AsyncClient, Outcome, batches, errors
from purgatory_client.session.backoff import Backoff

from purgatory.v1 import purgatory_service_pb2
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.daemon import DaemonProcess, RunDaemon
from tests.kit.eventually import until_pending
from tests.kit.proxy import FaultyProxy

pytestmark = pytest.mark.sockets

LONG = 120.0


async def test_a_session_that_is_taken_over_says_so(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
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
    async with FaultyProxy("127.0.0.1:1") as proxy, AsyncClient(proxy.address, give_up_after=LONG) as client:
        began_s = asyncio.get_running_loop().time()
        ended = await asyncio.gather(
            client.produce({"orders-3": 42}, timeout=0.1),
            client.produce_many(["orders-3"], offsets=[1, 2], timeouts_ms=[5, 500]),
            return_exceptions=True,
        )
        assert [type(one) for one in ended] == [errors.Unavailable, errors.Unavailable]
        assert asyncio.get_running_loop().time() - began_s > 0.499  # a timer may be early by the clock's resolution
        assert client.pending == 0


def test_ceilings_double_up_to_the_cap() -> None:
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
