"""Two daemons over one log whose disks fill up, damage a file, or lose what was not synced."""

import asyncio
import contextlib
import resource
import signal
import sqlite3
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, errors

from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.open_log import open_log
from tests.fleet.audit import check_files
from tests.kit.eventually import PATIENCE_S, until_pending, wait_until
from tests.kit.faults import Power
from tests.kit.fleet import Member
from tests.postgres.fleet.test_pair import CALM, advance_patiently, both, pair

__all__ = ["pair"]  # a fixture

pytestmark = pytest.mark.slow

FULL_BYTES = 16_384
"""No file may grow beyond. Enough for the daemon's log, and for one small group in the write-ahead log."""

POWER_FAILURES = 2


def fill(member: Member) -> None:
    """Make the disk of a daemon full, until it ends."""
    _, most = resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, most))


def is_refused_while_full(member: Member) -> None:
    """Start a daemon that has ended, on a full disk: it ends, and says why."""
    member.start_if_ended()
    fill(member)
    assert member.process.wait(PATIENCE_S) in {1, EXIT_REPLACED}
    assert "cannot open" in member.log.splitlines()[-1] or "cannot write" in member.log.splitlines()[-1]


async def restart(member: Member) -> None:
    """Start a daemon that has ended, and wait until it stands by."""
    member.start_if_ended()
    await asyncio.to_thread(member.until, "/readyz")
    assert not member.answers("/leaderz")


def audit(url: str, pair: tuple[Member, Member]) -> None:
    """End both daemons, and compare their files with the log."""
    for member in pair:
        member.end(signal.SIGTERM)
    with contextlib.closing(open_log(url)) as log:
        assert check_files(log, [member.data for member in pair]) > 1


@CALM
async def test_leader_with_a_full_disk(pair: tuple[Member, Member], url: str) -> None:
    """The leader resigns and discards its file, so that the standby leads at once and no wait ends. Until there is
    room again it does not start; then it stands by.
    """
    leader, standby = pair
    async with AsyncClient(both(pair), give_up_after=None) as client:
        waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=600))
        await until_pending(client, 1)
        fill(leader)
        assert await asyncio.to_thread(leader.process.wait, PATIENCE_S) == EXIT_REPLACED
        assert "resigned from epoch 1" in leader.log
        assert "cannot write the journal's file" in leader.log
        assert not (leader.data / "journal.db").exists()
        await asyncio.to_thread(is_refused_while_full, leader)
        await restart(leader)
        await advance_patiently(client, 7)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied
    assert "leading, epoch 2" in standby.log
    await asyncio.to_thread(audit, url, pair)


@CALM
async def test_standby_with_a_full_disk(pair: tuple[Member, Member], url: str) -> None:
    """The standby exits, says why, and does not start until there is room again; callers notice nothing. Then it
    catches up, and can take over.
    """
    leader, standby = pair
    async with AsyncClient(both(pair), give_up_after=None) as client:
        waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=600))
        await until_pending(client, 1)
        fill(standby)
        assert await asyncio.to_thread(standby.process.wait, PATIENCE_S) == EXIT_REPLACED
        assert "cannot write the standby's file" in standby.log
        await asyncio.to_thread(is_refused_while_full, standby)
        await client.advance("orders-0", high_watermark=6)
        assert leader.is_running
        await restart(standby)
        await asyncio.to_thread(leader.end, signal.SIGTERM)
        await advance_patiently(client, 7)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied
    assert "leading, epoch 2" in standby.log
    await asyncio.to_thread(audit, url, pair)


@pytest.mark.parametrize("pair", [("--fleet-silence-ms", "600000", "--fleet-snapshot-bytes", "20000")], indirect=True)
async def test_damaged_files(pair: tuple[Member, Member]) -> None:
    """Both files are damaged while the daemons run. The leader, which reads its file for a snapshot, hands over
    instead of storing it; the standby, which reads it when it takes over, resigns. Both fetch their files again, and
    continue all waits.
    """
    leader, standby = pair
    async with AsyncClient(both(pair), give_up_after=None) as client:
        waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=600))
        await until_pending(client, 1)
        for member in pair:
            await asyncio.to_thread(wait_until, lambda member=member: damage(member.data), "the wait is in the file")
        async with asyncio.timeout(PATIENCE_S):
            while leader.is_running:
                with contextlib.suppress(errors.Unavailable):
                    await asyncio.gather(*(client.advance(f"other-{n}", high_watermark=1) for n in range(100)))
        assert leader.process.returncode == EXIT_REPLACED
        assert "damaged file: shutting down" in leader.log
        assert await asyncio.to_thread(standby.process.wait, PATIENCE_S) == EXIT_REPLACED
        assert "resigned from epoch 2" in standby.log
        assert not (standby.data / "journal.db").exists()
        leader.start_if_ended()
        await asyncio.to_thread(leader.until, "/leaderz")
        assert "it is discarded, and fetched again" in leader.log
        await restart(standby)
        await advance_patiently(client, 7)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied


def damage(folder: Path) -> bool:
    """Damage all registrations in the file of a running daemon. Return whether there are any."""
    with contextlib.closing(sqlite3.connect(folder / "journal.db", timeout=PATIENCE_S)) as database:
        changed = database.execute("UPDATE registrations SET content = zeroblob(length(content))").rowcount
        database.commit()
    return changed > 0


@CALM
async def test_standby_catches_up_after_each_power_failure(
    pair: tuple[Member, Member], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, standby = pair
    power = Power(tmp_path / "power")
    async with AsyncClient(both(pair), give_up_after=None) as client:
        for number in range(1, POWER_FAILURES + 1):
            standby.end()
            power.fail(standby.data)
            with monkeypatch.context() as patch:
                for name, value in power.environment(0).items():
                    patch.setenv(name, value)
                await restart(standby)
            await asyncio.gather(*(client.advance(f"t-{n}", high_watermark=number) for n in range(200)))
        await asyncio.to_thread(leader.end, signal.SIGTERM)
        await advance_patiently(client, 7)
    await asyncio.to_thread(audit, url, pair)
