"""A small version of `make crash`."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from purgatory.journal.crash_points import VARIABLE
from tests.crash.crash_run import CrashRun
from tests.crash.limited_disk import DISKS, LimitedDisk, NotPossibleHere
from tests.crash.power_cut import Power
from tests.daemon_process import run_to_end

KILLS = 4
KILLS_WHILE_FULL = 2
CUTS = 2


def test_daemon_dies_at_the_point_that_its_environment_names(tmp_path: Path) -> None:
    """The hook that the other tests rely on works: the daemon dies at its first commit."""
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    assert run_to_end(tmp_path, listen, {VARIABLE: "before-commit:1"}).returncode == -signal.SIGKILL


@pytest.mark.slow  # five daemons
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_kill_loses_repeats_or_hastens_anything(tmp_path: Path, mode: str) -> None:
    """After kills, some of them at points of the journal, every acknowledged wait ends once, and not too early."""
    tally = asyncio.run(CrashRun(tmp_path, 1, mode).run(KILLS))
    assert tally.operations > KILLS
    assert tally.outbox_waits > KILLS
    assert tally.outbox_kills


@pytest.mark.slow  # three daemons, and a copy of the journal at every commit
def test_no_power_cut_loses_anything(tmp_path: Path) -> None:
    """Each daemon starts with the files as last synced, and with another wall clock."""
    try:
        power = Power(tmp_path / "shim")
    except NotPossibleHere as error:
        pytest.skip(str(error))
    tally = asyncio.run(CrashRun(tmp_path, 2, power=power).run(CUTS))
    assert tally.operations > CUTS


@pytest.mark.slow  # three daemons
@pytest.mark.parametrize("room_in", DISKS)
def test_a_disk_that_fills_up_loses_nothing(
    tmp_path: Path, room_in: Callable[[Path], AbstractContextManager[LimitedDisk]]
) -> None:
    """On a full disk every caller is refused; with space again all continue. Daemons are killed in both states."""
    try:
        with room_in(tmp_path / "disk") as room:
            tally = asyncio.run(CrashRun(tmp_path, 3, room=room).run(KILLS_WHILE_FULL))
    except NotPossibleHere as error:
        pytest.skip(str(error))
    assert tally.refused_batches
    assert tally.operations > KILLS_WHILE_FULL
