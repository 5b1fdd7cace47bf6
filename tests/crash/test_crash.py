"""A small version of `make crash`."""

import asyncio
import signal
from pathlib import Path

import pytest

from purgatory.journal.crash_points import VARIABLE
from tests.crash.crash_run import CrashRun
from tests.kit.daemon import run_to_end
from tests.kit.faults import LimitedDisk, NotPossibleHere, Power

KILLS = 2


def test_daemon_dies_at_the_point_that_its_environment_names(tmp_path: Path) -> None:
    """The hook that the other tests rely on works: the daemon dies at its first commit."""
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    assert run_to_end(tmp_path, listen, {VARIABLE: "before-commit:1"}).returncode == -signal.SIGKILL


@pytest.mark.slow  # three daemons
@pytest.mark.parametrize("kind", ["kill", "power cut", "full disk"])
def test_no_kill_loses_repeats_or_hastens_anything(tmp_path: Path, kind: str) -> None:
    """Every acknowledged wait ends once, and not too early, after kills, of which the first is at a point of the
    journal, also for the caller with an outbox; after power cuts that leave the files as last synced, and another wall
    clock; and after kills on a full disk, on which every caller is refused until there is space again.
    """
    try:
        power = Power(tmp_path / "shim") if kind == "power cut" else None
        room = LimitedDisk(tmp_path / "disk") if kind == "full disk" else None
    except NotPossibleHere as error:
        pytest.skip(str(error))
    tally = asyncio.run(CrashRun(tmp_path, 1, room=room, power=power, has_outbox=kind == "kill").run(KILLS))
    assert tally.operations > KILLS
    assert bool(tally.refused_batches) == (room is not None)
    assert (tally.outbox_waits > KILLS) == (kind == "kill")
