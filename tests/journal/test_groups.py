"""Which changes start a new group, and which wait for the next one."""

import asyncio
from pathlib import Path

import pytest

from purgatory.service.host import Host
from purgatory.service.listeners.durable_journal import DurableJournal, JournalStatistics
from purgatory.service.sessions.session import Session
from tests.journal.kit import JournaledHost, high_watermark, register
from tests.service.serving import apply_events


async def end_one(host: Host, session: Session) -> JournalStatistics:
    """Register a wait and end it durably. Return the journal's statistics."""
    register(host, session, {1: 5})
    await apply_events(host, high_watermark(5))
    await host.journal.durable()
    session.outbox.take(10)
    return statistics(host)


def statistics(host: Host) -> JournalStatistics:
    """The journal's statistics."""
    assert isinstance(host.journal, DurableJournal)
    return host.journal.statistics()


async def test_sealing_a_group_is_watched(tmp_path: Path) -> None:
    """The time for which sealing blocks the loop is measured under its own name."""
    daemon = await JournaledHost.start(tmp_path / "data")
    watched = daemon.host.holds.of("journal")
    watched.longest_ns = 0
    register(daemon.host, daemon.session, dict.fromkeys(range(1, 2_001), 5))
    await daemon.host.journal.durable()
    assert watched.longest_ns > 0
    await daemon.stop()


@pytest.mark.parametrize("by_tick", [True, False])
async def test_an_acknowledgement_goes_with_the_next_group(tmp_path: Path, by_tick: bool) -> None:
    """No answer waits for an acknowledgement, so it starts no group; the row of results is deleted with the next
    group or tick.
    """
    daemon = await JournaledHost.start(tmp_path / "data")
    host = daemon.host
    session = daemon.session
    before = await end_one(host, session)
    assert before.results == 1
    host.acknowledge(session, 1)
    answered: list[str] = []
    host.journal.when_durable(lambda: answered.append("at once"))
    assert answered == ["at once"]
    await asyncio.sleep(0)
    assert statistics(host) == before
    if by_tick:
        host.journal.tick()
    else:
        register(host, session, {2: 9})
    await host.journal.durable()
    after = statistics(host)
    assert (after.groups, after.results) == (before.groups + 1, 0)
    await daemon.stop()
