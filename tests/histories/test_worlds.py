"""Worlds of real daemons in a short form; those of pairs, Kafka and Spark are tested where their servers are."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from purgatory.journal.crash_points import VARIABLE
from tests.engine import plain
from tests.histories.daemon_record import DaemonEnd
from tests.histories.history import History
from tests.histories.worlds import day, shards
from tests.histories.worlds.churn import ChurnWorld
from tests.histories.worlds.crash import CrashWorld
from tests.histories.worlds.stops import StopsWorld
from tests.kit.daemon import run_to_end
from tests.kit.faults import LimitedDisk, NotPossibleHere, Power
from tests.kit.recorded import assert_recorded, cases_of

pytestmark = pytest.mark.sockets

KILLS = 3
DAYS = (20, 69, 511, 17)
"""Together these seeds have every kind of operation, fault and restart, every limit, both event loops and a drain. The
last one has small internal sizes and a listener that raises.
"""
NAME = ("log", 0)
ENDED = plain.Ended(0, 1, plain.PRODUCE, plain.SATISFIED, 20, 0, (plain.EndedItem(NAME, 0, 5, 5, 0),))
END = DaemonEnd(ENDED, 1_020, has_result=True)
FITS = Path(__file__).with_name("fits.txt")
NOT_REACHED = (plain.EndedItem(NAME, 7, 5, 4, 0),)


@pytest.mark.slow  # a day takes about a second
@pytest.mark.parametrize("seed", DAYS)
def test_each_wait_of_a_day_ends_once_as_in_the_engine(seed: int) -> None:
    history = History(seed, frozenset(day.FAULTS))
    day.run(history)
    history.judge.check_end()
    assert history.judge.complaints == []


def test_result_that_the_engine_did_not_give_does_not_fit() -> None:
    """As in fits.txt."""
    assert END.fits(ENDED, 999.2, 1_020.5)
    assert END.fits(ENDED._replace(waited_ms=21), 999.2, 1_020.5)  # it was sent again

    names = {"replace": replace, "plain": plain, "END": END, "ENDED": ENDED, "NOT_REACHED": NOT_REACHED}

    def fits(case: str) -> str:
        end, row, received_ms = eval(case, names)
        return f"{end.fits(row, 999.2, received_ms)}"

    assert_recorded(FITS, map(fits, cases_of(FITS)))


def test_daemon_dies_at_the_point_that_its_environment_names(tmp_path: Path) -> None:
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    assert run_to_end(tmp_path, listen, {VARIABLE: "before-commit:1"}).returncode == -signal.SIGKILL


@pytest.mark.slow  # four daemons
@pytest.mark.parametrize("kind", ["kill", "power cut", "full disk"])
def test_no_kill_loses_repeats_or_hastens_anything(tmp_path: Path, kind: str) -> None:
    """Every acknowledged wait ends once, and not too early, after kills, one of them at a point of the
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


@pytest.mark.slow  # an extended wait takes four seconds
def test_readers_at_both_shards_read_the_first_value_of_a_key() -> None:
    history = History(7, frozenset(shards.FAULTS))
    shards.run(history)
    history.judge.check_end()
    assert history.judge.complaints == []
    assert min(history.figures[what] for what in ("kills", "floods", "values left out")) > 0


@pytest.mark.slow  # abandoned sessions live for three seconds
def test_callers_that_come_and_go_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    ways = ("satisfied", "expired", "cancelled", "cancelled by the caller", "connections cut", "waits abandoned")
    run = ChurnWorld(tmp_path, seed=1, places=1, pace=0.35, ways=ways)
    asyncio.run(run.run(1.0, 0.5))
    assert run.samples


@pytest.mark.slow  # a stop is longer than the timeout of the waits, which is 2 s
def test_stopped_daemon_calls_only_those_silent_who_are(tmp_path: Path) -> None:
    run = StopsWorld(tmp_path, seed=1)
    asyncio.run(run.run(1, (2.5, 2.5)))
    assert run.faults == []
    assert len(run.late_s) == 1
