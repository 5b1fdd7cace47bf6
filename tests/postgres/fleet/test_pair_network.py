"""A pair over a log in real PostgreSQL: its daemons die and stop, its network is cut, and its wall clocks differ."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence, Set
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, errors

from purgatory.extensions.fleet.fleet_view import UNCONFIRMED
from purgatory.replicated_log.leadership import EXIT_REPLACED
from tests.histories.judge import Judge
from tests.histories.worlds.pair import CUTS, ENDS, SILENCE_MS, PairWorld
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.fleet import Links, Member
from tests.kit.proxy import DOWN, UP
from tests.postgres.fleet.test_pair import advance_patiently

pytestmark = pytest.mark.slow

TOP = 1_000_000


@pytest.mark.parametrize("kinds", [ENDS, CUTS], ids=["ends", "cuts"])
def test_no_fault_loses_repeats_or_hastens_anything(url: str, tmp_path: Path, kinds: Sequence[str]) -> None:
    """While either daemon is killed, stopped, handed over or killed at a point of its commit, or cut off from the log
    or from callers, each acknowledged wait ends once and not too early, and every read of a mark or count is right.
    Afterwards each daemon's file has exactly the rows that the log says. The daemons' wall clocks are hours apart.
    """
    tally = asyncio.run(PairWorld(tmp_path, url, 1, kinds).run(len(kinds)))
    assert min(tally["operations"], tally["reads"], tally["groups in the log"]) > len(kinds)


@pytest.mark.parametrize("ways", [UP, DOWN], ids=["up", "down"])
async def test_leader_cut_off_from_its_log(url: str, tmp_path: Path, ways: Set[str]) -> None:
    """Either nothing that it appends arrives, or no answers do, so that it may count. It answers no read with an old
    mark, and exits with the code that asks for a restart. The standby leads. The old leader does not become ready until
    the network heals; then it has everything.
    """
    flags = ("--fleet-silence-ms", str(SILENCE_MS))
    async with contextlib.AsyncExitStack() as stack:
        links, members = [await stack.enter_async_context(Links(url)) for _ in range(2)], list[Member]()
        for name, link, probe in zip("ab", links, ("/leaderz", "/readyz"), strict=True):
            members.append(Member(name, tmp_path, link.log_uri, flags, grpc_address=link.daemon_address))
            stack.callback(members[-1].end)
            await asyncio.to_thread(members[-1].until, probe)
        old, new = members
        client = await stack.enter_async_context(AsyncClient(",".join(link.address for link in links)))
        waiting = asyncio.create_task(client.produce({"orders-0": TOP}, timeout=600))
        await until_pending(client, 1, but=errors.Unavailable)
        await advance_patiently(client, 1)
        links[0].log.hold(ways)
        await check_reads(old, new)
        assert old.process.returncode == EXIT_REPLACED
        await asyncio.to_thread(new.until, "/leaderz")
        old.start_if_ended()
        await asyncio.to_thread(wait_until, lambda: "the log does not answer" in old.log, "it tries")
        assert not old.answers("/readyz")
        await advance_patiently(client, TOP)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied
        links[0].log.hold(frozenset())
        await asyncio.to_thread(old.until, "/readyz")
        await asyncio.to_thread(new.end, signal.SIGTERM)
        await asyncio.to_thread(old.until, "/leaderz")
        async with AsyncClient(old.grpc_address) as direct:
            found = await eventually(lambda: direct.partition("orders-0"), but=errors.Unavailable)
            assert found.high_watermark == TOP


async def check_reads(old: Member, new: Member) -> None:
    """Until the old leader has exited, it must not return less than the new one has acknowledged before."""
    judge = Judge()

    async def advance(client: AsyncClient) -> None:
        for mark in range(2, TOP):
            judge.sending("orders-0", mark)
            with contextlib.suppress(errors.PurgatoryClientError):
                await client.advance("orders-0", high_watermark=mark)
                judge.acknowledged("orders-0", mark)
            await asyncio.sleep(0.01)

    async with AsyncClient(old.grpc_address) as at_old, AsyncClient(new.grpc_address) as at_new:
        advancing = asyncio.create_task(advance(at_new))
        deadline_s = time.monotonic() + PATIENCE_S
        states = set[str]()
        while old.process.poll() is None:
            assert time.monotonic() < deadline_s, "the old leader does not exit"
            with contextlib.suppress(OSError):
                states.add((await asyncio.to_thread(old.view))["state"])
            at_least = judge.at_least("orders-0")
            with contextlib.suppress(errors.PurgatoryClientError):
                judge.read("orders-0", (await at_old.partition("orders-0")).high_watermark, at_least)
            await asyncio.sleep(0.01)
        advancing.cancel()
    assert judge.complaints == []
    assert UNCONFIRMED in states
