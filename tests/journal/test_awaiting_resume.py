"""A client that has results which nobody remembers, over daemons that die one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.service.host import Host
from purgatory.service.listeners.journal_opening import OpenJournal
from purgatory.service.sessions.session import Session
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.journal.kit import copy_files, keep
from tests.journal.test_damage import new_host

PATIENCE_S = 30.0
WAITS = 4


class JournaledHost:
    """One of several that have a folder, or a copy of it as it was when one died, after the other."""

    def __init__(self, host: Host, opened: OpenJournal, clock: ManualClock) -> None:
        self.host = host
        self.opened = opened
        self._clock = clock

    @classmethod
    async def start(cls, folder: Path) -> JournaledHost:
        """A daemon that knows what the journal in a folder says."""
        clock = ManualClock(1_000)
        host = new_host(clock)
        return cls(host, await keep(host, folder, clock), clock)

    @property
    def session(self) -> Session:
        """The only one."""
        return self.host.sessions.open("a", self._clock.now_ms())[0]

    async def end_two(self) -> None:
        """The first two waits are satisfied, and that is durable."""
        await self.host.apply(EventBatch([codes.HIGH_WATERMARK], partitions=[("t", 0)], offsets=[2]))
        await self.host.journal.durable()

    def is_back(self, sequence: int) -> list[int]:
        """The client, which has results up to `sequence`, is back: the numbers of those that it is sent."""
        session = self.session
        session.resume(sequence)
        self.host.journal.changed(session)
        session.outbox.rewind()
        session.outbox.release_all()
        first, parts = session.outbox.take(WAITS)
        return list(range(first, first + sum(len(part) for part in parts)))

    async def die(self, folder: Path, copy: Path) -> None:
        """What is on disk now is all that the next one finds."""
        copy_files(folder, copy)
        await self.stop()

    async def stop(self) -> None:
        """An end in good order."""
        assert await self.opened.close(PATIENCE_S)


async def first_life(folder: Path, copy: Path) -> None:
    """Waits are registered; then two end, and the daemon dies before that is written, but not before it is told."""
    daemon = await JournaledHost.start(folder)
    numbers = list(range(1, WAITS + 1))
    batch = OperationBatch(numbers, partitions=[("t", 0)], offsets=numbers, timeouts_ms=[60_000])
    daemon.host.register(daemon.session, [OperationRun(codes.PRODUCE, batch)], [])
    await daemon.host.journal.durable()
    await daemon.die(folder, copy)


@pytest.mark.parametrize("in_good_order", [True, False])
def test_results_given_before_the_client_is_back_are_not_taken_for_those_it_has(
    tmp_path: Path, in_good_order: bool
) -> None:
    """However many daemons came and went meanwhile: results have numbers after those that the client has."""

    async def lives() -> None:
        await first_life(tmp_path / "1", tmp_path / "2")
        second = await JournaledHost.start(tmp_path / "2")
        await second.end_two()
        if in_good_order:
            await second.stop()
            copy_files(tmp_path / "2", tmp_path / "3")
        else:
            await second.die(tmp_path / "2", tmp_path / "3")
        third = await JournaledHost.start(tmp_path / "3")
        assert third.is_back(2) == [3, 4]
        await third.stop()

    asyncio.run(lives())


def test_a_client_that_was_back_when_the_daemon_died_again_loses_nothing(tmp_path: Path) -> None:
    """It came after the last group: the next daemon must not believe that it had what that group says."""

    async def lives() -> None:
        await first_life(tmp_path / "1", tmp_path / "2")
        second = await JournaledHost.start(tmp_path / "2")
        await second.end_two()
        copy_files(tmp_path / "2", tmp_path / "3")
        assert second.is_back(2) == [3, 4]
        await second.stop()
        third = await JournaledHost.start(tmp_path / "3")
        assert third.is_back(2) == [3, 4], "they were under way to it"
        await third.stop()

    asyncio.run(lives())


@pytest.mark.parametrize("back_in", [2, 3])
def test_results_wait_until_it_is_durable_that_the_client_is_back(tmp_path: Path, back_in: int) -> None:
    """If they went before, the next daemon could not tell them from those of the one that died."""

    async def lives() -> None:
        await first_life(tmp_path / "1", tmp_path / "2")
        daemon = await JournaledHost.start(tmp_path / "2")
        await daemon.end_two()
        if back_in > 2:
            await daemon.die(tmp_path / "2", tmp_path / "3")
            daemon = await JournaledHost.start(tmp_path / "3")
        session = daemon.session
        session.resume(0)
        session.outbox.rewind()
        daemon.host.journal.changed(session)
        assert session.outbox.take(WAITS) == (1, [])
        await daemon.host.journal.durable()
        first, parts = session.outbox.take(WAITS)
        assert (first, sum(len(part) for part in parts)) == (1, 2)
        await daemon.die(tmp_path / str(back_in), tmp_path / "4")
        after = await JournaledHost.start(tmp_path / "4")
        assert after.is_back(2) == []
        await after.stop()

    asyncio.run(lives())


def test_once_the_client_was_back_its_numbers_are_believed(tmp_path: Path) -> None:
    """That it was back is kept, with how its numbers go on: nothing is given twice from then on."""

    async def lives() -> None:
        await first_life(tmp_path / "1", tmp_path / "2")
        second = await JournaledHost.start(tmp_path / "2")
        await second.end_two()
        assert second.is_back(2) == [3, 4]
        await second.host.journal.durable()
        await second.die(tmp_path / "2", tmp_path / "3")
        third = await JournaledHost.start(tmp_path / "3")
        assert third.is_back(4) == []
        await third.stop()
        fourth = await JournaledHost.start(tmp_path / "3")
        assert fourth.is_back(3) == []
        await fourth.stop()

    asyncio.run(lives())
