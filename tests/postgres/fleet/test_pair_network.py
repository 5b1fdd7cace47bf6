"""A pair over a log in real PostgreSQL: its network is cut, and its daemons' wall clocks are wrong."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from purgatory_client import AsyncClient, errors
from purgatory_client.views import PendingOperation

from purgatory.extensions.fleet.fleet_view import UNCONFIRMED
from purgatory.replicated_log.leadership import EXIT_REPLACED
from tests.histories.judge import Judge
from tests.histories.worlds.pair import CUTS, SILENCE_MS, PairWorld
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.faults import NotPossibleHere, WallClock, build_library
from tests.kit.fleet import Links, Member
from tests.kit.proxy import DOWN, UP
from tests.postgres.fleet.test_pair import advance_patiently

pytestmark = pytest.mark.slow

Answer = TypeVar("Answer")

TOP = 1_000_000
TIMEOUT_S = 600
AWAY_S = 5.0
LATE_S_MAX = 2.0
"""How long an entry may be on its way on a busy machine: a takeover may count this much too little."""
ROUNDED_S = 0.01
WRONG_S = 3_600
"""By how much wall clocks are wrong; `make fleet-crash` also sets them by seconds."""


class Pair(NamedTuple):
    """A leader and its standby, in this order, with the proxies of their connections."""

    members: list[Member]
    links: list[Links]

    @property
    def address(self) -> str:
        return ",".join(links.address for links in self.links)


@contextlib.asynccontextmanager
async def running(folder: Path, url: str, silence_ms: int, clocks: Sequence[WallClock] = ()) -> AsyncIterator[Pair]:
    """Start a pair, which ends with the block."""
    pair = Pair([], [Links(url), Links(url)])
    flags = ("--fleet-silence-ms", str(silence_ms))
    environments = [clock.environment for clock in clocks] or [{}, {}]
    async with pair.links[0], pair.links[1]:
        try:
            for name, probe, links, shown in zip("ab", ("/leaderz", "/readyz"), pair.links, environments, strict=True):
                address = links.daemon_address
                member = Member(name, folder, links.log_uri, flags, grpc_address=address, environment=shown)
                pair.members.append(member)
                await asyncio.to_thread(member.until, probe)
            yield pair
        finally:
            for member in pair.members:
                await asyncio.to_thread(member.end)


async def until_equal(behind: Member, ahead: Member) -> None:
    """Wait until one daemon has read what another one has read now."""
    end = ahead.view()["position"]
    await eventually(lambda: behind.view()["position"] >= end, f"{behind.grpc_address} has caught up")


def test_no_cut_loses_repeats_or_hastens_anything(url: str, tmp_path: Path) -> None:
    """While either daemon is cut off from the log or from callers, in one direction or both, each acknowledged wait
    ends once and not too early, and every read of a mark or count is right.
    """
    tally = asyncio.run(PairWorld(tmp_path, url, 1, CUTS).run(len(CUTS)))
    assert min(tally["operations"], tally["reads"]) > len(CUTS)


@pytest.mark.parametrize("ways", [UP, DOWN], ids=["up", "down"])
async def test_leader_cut_off_from_its_log(url: str, tmp_path: Path, ways: Set[str]) -> None:
    """Either nothing that it appends arrives, or no answers do, so that it may count. It answers no read with an old
    mark, and exits with the code that asks for a restart. The standby leads. The old leader does not become ready until
    the network heals; then it has everything.
    """
    async with running(tmp_path, url, SILENCE_MS) as pair, AsyncClient(pair.address) as client:
        waiting = asyncio.create_task(client.produce({"orders-0": TOP}, timeout=TIMEOUT_S))
        await until_pending(client, 1, but=errors.Unavailable)
        await advance_patiently(client, 1)
        old, new = pair.members
        pair.links[0].log.hold(ways)
        await check_reads(old, new)
        assert old.process.returncode == EXIT_REPLACED
        await asyncio.to_thread(new.until, "/leaderz")
        old.start_if_ended()
        await asyncio.to_thread(wait_until, lambda: "the log does not answer" in old.log, "it tries")
        assert not old.answers("/readyz")
        await advance_patiently(client, TOP)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied
        pair.links[0].log.hold(frozenset())
        await asyncio.to_thread(old.until, "/readyz")
        await asyncio.to_thread(new.end, signal.SIGTERM)
        await asyncio.to_thread(old.until, "/leaderz")
        async with AsyncClient(old.grpc_address) as direct:
            assert (
                await eventually(lambda: direct.partition("orders-0"), but=errors.Unavailable)
            ).high_watermark == TOP


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
            states.add(await asyncio.to_thread(state_of, old))
            at_least = judge.at_least("orders-0")
            with contextlib.suppress(errors.PurgatoryClientError):
                judge.read("orders-0", (await at_old.partition("orders-0")).high_watermark, at_least)
            await asyncio.sleep(0.01)
        advancing.cancel()
    assert judge.complaints == []
    assert UNCONFIRMED in states


def state_of(member: Member) -> str:
    """What a daemon that may have ended shows as its state."""
    with contextlib.suppress(OSError):
        return str(member.view()["state"])
    return ""


async def only_pending(client: AsyncClient) -> PendingOperation:
    (pending,) = [operation async for operation in client.operations()]
    return pending


class Timed:
    """A pending wait, whose remaining time must follow the caller's clock."""

    def __init__(self, registering_s: float) -> None:
        self._registering_s = registering_s
        self._registered_s = time.monotonic()

    async def check(self, address: str, late_s: float) -> None:
        """Check the time that the daemon counts: at most what has passed, and less by `late_s` at most."""
        async with AsyncClient(address) as client:
            least_s = time.monotonic() - self._registered_s - late_s
            pending = await eventually(lambda: only_pending(client), but=errors.Unavailable)
            passed_s = TIMEOUT_S - pending.remaining
            assert least_s - ROUNDED_S <= passed_s <= time.monotonic() - self._registering_s + ROUNDED_S


async def test_wall_clocks_decide_nothing(url: str, tmp_path: Path) -> None:
    """The daemons' wall clocks differ, and are set while they run. A wait continues as its caller's clock does: over a
    takeover by the daemon whose clock is ahead, and while both are away, until the one whose clock is behind starts.
    """
    try:
        library = build_library(tmp_path)
    except NotPossibleHere as error:
        pytest.skip(str(error))
    clocks = WallClock(library, tmp_path / "step-a"), WallClock(library, tmp_path / "step-b")
    clocks[0].step(-WRONG_S)
    clocks[1].step(WRONG_S)
    async with running(tmp_path, url, 2_000, clocks) as pair, AsyncClient(pair.address) as client:
        a, b = pair.members
        registering_s = time.monotonic()
        waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=TIMEOUT_S))
        await until_pending(client, 1)
        wait = Timed(registering_s)
        await until_equal(b, a)
        await asyncio.to_thread(a.end)
        await asyncio.to_thread(b.until, "/leaderz")
        await wait.check(b.grpc_address, LATE_S_MAX)
        for wrong_s in (3, -WRONG_S, WRONG_S):
            clocks[1].step(wrong_s)
            await wait.check(b.grpc_address, LATE_S_MAX)
        await asyncio.to_thread(b.end)
        await asyncio.sleep(AWAY_S)
        a.start_if_ended()
        await asyncio.to_thread(a.until, "/leaderz")
        await wait.check(a.grpc_address, 2 * LATE_S_MAX)
        waiting.cancel()
