"""The upgrade of a pair by handover, under load, to a later release whose journal has a further table."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome, errors

from purgatory.journal.directory import DATABASE
from purgatory.replicated_log.entry import TABLES
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.open_log import open_log
from tests.fleet.audit import check_files
from tests.kit.commands import fleet_command
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.fleet import Fleet, Member

pytestmark = pytest.mark.slow

CALM = ("--fleet-silence-ms", "600000")
NEXT_RELEASE = "tests.postgres.fleet.next_release"
WAITS = 200


async def load(client: AsyncClient, answered: list[int]) -> None:
    """Register and end waits for ever. One at a time fails where no daemon leads; its wait resumes."""
    while True:
        number = len(answered) + 1
        wait = asyncio.create_task(client.produce({"load-0": number}, timeout=600))
        while not wait.done():
            with contextlib.suppress(errors.Unavailable):
                await client.advance("load-0", high_watermark=number)
            await asyncio.sleep(0.01)
        assert wait.result().satisfied
        answered.append(number)


def hand_over(leader: Member, other: Member) -> None:
    """Let the other one lead. The leader has ended afterwards."""
    assert fleet_command(["handover", "--address", leader.grpc_address]) == 0
    assert leader.process.wait(PATIENCE_S) == EXIT_REPLACED
    other.until("/leaderz")


def upgrade(standby: Member) -> None:
    """Start the later release in place of a daemon, on the same folder; returns once it stands by."""
    standby.end()
    standby.module = NEXT_RELEASE
    standby.start_if_ended()
    standby.until("/readyz")


async def test_upgrade_by_handover(url: str, tmp_path: Path) -> None:
    """The later release takes over a log of the earlier one, and all waits continue. From then on the earlier one stops
    at its start and says why, until it is upgraded too.
    """
    with Fleet(tmp_path, url, *CALM) as fleet:
        a, b = await asyncio.to_thread(fleet.start_pair)
        answered: list[int] = []
        async with AsyncClient(fleet.address, give_up_after=None) as client:
            batch = client.produce_many(["kept-0"], offsets=range(1, WAITS + 1), timeouts_ms=[600_000])
            waiting = asyncio.create_task(batch)
            await until_pending(client, WAITS)
            loading = asyncio.create_task(load(client, answered))
            await asyncio.to_thread(upgrade, b)
            await asyncio.to_thread(hand_over, a, b)
            a.start_if_ended()
            assert await asyncio.to_thread(a.process.wait, PATIENCE_S) == 1
            assert f"has version {TABLES + 1} of the journal's tables" in a.log
            await asyncio.to_thread(upgrade, a)
            await asyncio.to_thread(hand_over, b, a)
            before = len(answered)
            await asyncio.to_thread(wait_until, lambda: len(answered) > before or loading.done(), "waits are answered")
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            assert loading.cancelled(), loading
            assert not waiting.done()
            await eventually(
                lambda: client.advance("kept-0", high_watermark=WAITS), but=errors.Unavailable
            )  # the stream of events may have ended, too
            results = await asyncio.wait_for(waiting, PATIENCE_S)
        assert set(results.outcomes) == {Outcome.SATISFIED}
    for member in (a, b):
        with contextlib.closing(sqlite3.connect(member.data / DATABASE)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (TABLES + 1,)
    with contextlib.closing(open_log(url)) as log:
        assert check_files(log, [a.data, b.data]) > 0
