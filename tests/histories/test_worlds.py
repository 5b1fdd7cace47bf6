"""Worlds of real daemons in a short form; those of pairs, Kafka and Spark are tested where their servers are."""

import asyncio
import signal
from pathlib import Path

import pytest

from purgatory.journal.crash_points import VARIABLE
from tests.histories.worlds.churn import ChurnWorld
from tests.histories.worlds.crash import CrashWorld
from tests.histories.worlds.stops import StopsWorld
from tests.kit.daemon import run_to_end
from tests.kit.faults import LimitedDisk, NotPossibleHere, Power

pytestmark = pytest.mark.sockets

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
    tally = asyncio.run(CrashWorld(tmp_path, 1, room=room, power=power, has_outbox=kind == "kill").run(KILLS))
    assert tally["operations"] > KILLS
    assert bool(tally["refused batches"]) == (room is not None)
    assert (tally["outbox waits"] > KILLS) == (kind == "kill")


@pytest.mark.slow  # abandoned sessions live for three seconds
def test_callers_that_come_and_go_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """All waits end as expected, and then no session or result of the callers is left."""
    ways = ("satisfied", "expired", "cancelled", "cancelled by the caller", "connections cut", "waits abandoned")
    run = ChurnWorld(tmp_path, seed=1, places=1, pace=0.35, ways=ways)
    asyncio.run(run.run(1.0, 0.5))
    assert run.samples


@pytest.mark.slow  # a stop is longer than the timeout of the waits, which is 2 s
def test_stopped_daemon_calls_only_those_silent_who_are(tmp_path: Path) -> None:
    """Waits whose worker or source has gone on reporting stay; those of one that has not, fail."""
    run = StopsWorld(tmp_path, seed=1)
    asyncio.run(run.run(1, (2.5, 2.5)))
    assert run.faults == []
    assert len(run.late_s) == 1
