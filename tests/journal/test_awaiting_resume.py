"""A client has results that a crash lost in the daemon, across several daemons."""

from pathlib import Path

import pytest

from tests.journal.kit import JournaledHost, copy_files, register
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events

WAITS = 4


async def end_two(daemon: JournaledHost) -> None:
    """Satisfy the first two waits durably."""
    await apply_events(daemon.host, mark_batch(2, "t"))
    await daemon.host.journal.durable()


async def first_life(folder: Path, copy: Path) -> None:
    """Register waits durably. From the client's point of view, it then receives two results, and the daemon dies before
    writing them.
    """
    daemon = await JournaledHost.start(folder)
    register(daemon.host, daemon.session, {number: number for number in range(1, WAITS + 1)})
    await daemon.host.journal.durable()
    await daemon.die(folder, copy)


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_results_given_before_the_client_is_back_are_not_taken_for_those_it_has(
    tmp_path: Path, in_good_order: bool
) -> None:
    """After any number of daemons in between, new results get numbers above those that the client has."""
    await first_life(tmp_path / "1", tmp_path / "2")
    second = await JournaledHost.start(tmp_path / "2")
    await end_two(second)
    if in_good_order:
        await second.stop()
        copy_files(tmp_path / "2", tmp_path / "3")
    else:
        await second.die(tmp_path / "2", tmp_path / "3")
    third = await JournaledHost.start(tmp_path / "3")
    assert third.resume(2) == [3, 4]
    await third.stop()


async def test_a_client_that_was_back_when_the_daemon_died_again_loses_nothing(tmp_path: Path) -> None:
    """The client resumed after the last group, so the next daemon must not assume that it has the results of that
    group.
    """
    await first_life(tmp_path / "1", tmp_path / "2")
    second = await JournaledHost.start(tmp_path / "2")
    await end_two(second)
    copy_files(tmp_path / "2", tmp_path / "3")
    assert second.resume(2) == [3, 4]
    await second.stop()
    third = await JournaledHost.start(tmp_path / "3")
    assert third.resume(2) == [3, 4], "they were not yet received"
    await third.stop()


@pytest.mark.parametrize("back_in", [2, 3])
async def test_results_wait_until_it_is_durable_that_the_client_is_back(tmp_path: Path, back_in: int) -> None:
    """If they were sent earlier, the next daemon could not distinguish them from those that the crash lost."""
    await first_life(tmp_path / "1", tmp_path / "2")
    daemon = await JournaledHost.start(tmp_path / "2")
    await end_two(daemon)
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
    assert after.resume(2) == []
    await after.stop()


async def test_once_the_client_was_back_its_numbers_are_believed(tmp_path: Path) -> None:
    """The resume is stored with the new numbering, so nothing is delivered twice afterwards."""
    await first_life(tmp_path / "1", tmp_path / "2")
    second = await JournaledHost.start(tmp_path / "2")
    await end_two(second)
    assert second.resume(2) == [3, 4]
    await second.host.journal.durable()
    await second.die(tmp_path / "2", tmp_path / "3")
    third = await JournaledHost.start(tmp_path / "3")
    assert third.resume(4) == []
    await third.stop()
    fourth = await JournaledHost.start(tmp_path / "3")
    assert fourth.resume(3) == []
    await fourth.stop()
