"""The workers: each does the work it says, to the end, and all of one kind do the same."""

import gc
from collections.abc import Iterator

import pytest

from bench.counted import WORKLOADS
from bench.measure.processes import WorkerFailed, python_worker
from bench.measure.worker import Numbers, Workload, answer
from bench.peers import conditions
from bench.subjects import engine_patterns, engine_runs, lateness, timers


def test_lines_are_answered_whatever_they_say() -> None:
    """A known workload by its numbers; an unknown one, a missing parameter and a failure by an error."""

    def double(number: int, scale: float = 2.0) -> Numbers:
        return {"twice": scale * number}

    workloads: dict[str, Workload] = {"double": double}
    assert answer(workloads, ["run", "double", "number=4"]) == {"twice": 8.0}
    assert answer(workloads, ["run", "double", "number=4", "scale=0.5", "other=x"]) == {"twice": 2.0}
    assert answer(workloads, ["run", "treble"]) == {"error": "no such workload; there are double"}
    assert answer(workloads, []) == {"error": "no such workload; there are double"}
    for words, error in (([], "TypeError"), (["number=x"], "ValueError"), (["number"], "ValueError")):
        assert str(answer(workloads, ["run", "double", *words])["error"]).startswith(error)


@pytest.mark.slow  # a process is started
def test_a_worker_goes_on_after_a_failure() -> None:
    """What failed raises in the harness; the next workload is served; the process ends with the block."""
    with python_worker("bench.subjects.timers") as worker:
        with pytest.raises(WorkerFailed, match="no such workload"):
            worker.run("nothing")
        assert worker.run("timer-add-expire", timer="heapq", count=10, delay_ms=5)["operations"] == 10
        process = worker
    with pytest.raises(ValueError, match="closed"):
        process.run("timer-add-expire", timer="heapq", count=10, delay_ms=5)


@pytest.mark.parametrize(
    ("workload", "parameters", "in_a_turn"),
    [
        (engine_runs.register_complete, {"keys": 1, "hot": 1, "pending": 20, "step": 5, "events": 4}, 20),
        (engine_runs.register_complete, {"keys": 6, "hot": 3, "pending": 2, "step": 1, "events": 6}, 6),
        (engine_patterns.five_partitions, {"partitions": 20, "pending": 12}, 4),
        (engine_patterns.zipf, {"keys": 30, "pending": 30}, 100),
        (engine_patterns.falling, {"pending": 1_000, "step": 10}, 1_000),
    ],
)
def test_work_ends_what_it_says(workload: Workload, parameters: dict[str, int], in_a_turn: int) -> None:
    """Whole turns, of which each ends as many as it registers: the workload itself asserts what waits afterwards."""
    ended = workload(**parameters, seconds=0.001)["operations"]
    assert ended > 0
    assert ended % in_a_turn == 0


def test_keys_are_drawn_by_zipfs_law() -> None:
    """The first ranks of a thousand keys take what the law says; no batch has one more often than waits are there."""
    batches = engine_patterns.draw(1_000, 20)
    assert max(batch.count(0) for batch in batches) == 20
    chosen = [key for batch in batches for key in batch]
    shares = [chosen.count(rank) / chosen.count(0) for rank in range(1, 4)]
    assert shares == pytest.approx([2**-1.1, 3**-1.1, 4**-1.1], rel=0.1)
    assert max(chosen) == 999


@pytest.mark.parametrize("workload", [engine_runs.expire_all, engine_runs.cancel_all])
def test_all_end(workload: Workload) -> None:
    """All that were registered expire, or are cancelled."""
    assert workload(count=1_200, keys=3)["operations"] == 1_200


def test_a_long_poll_is_evaluated_a_few_times() -> None:
    """Fed by 1,024 appends of 1 KiB, a fetch of 1 MiB is looked at far less often than once an append."""
    numbers = engine_runs.fetch_evaluations(fetches=20, appends=1_024)
    assert numbers["operations"] == 20
    assert 1 <= numbers["evaluations"] <= 20


@pytest.mark.parametrize("timer", timers.TIMERS)
def test_timers_fire_each_once_when_due(timer: str) -> None:
    """None before its time; of a timer that was replaced, only the last one."""
    driver = timers.TIMERS[timer](30)
    driver.add_all(range(30), [1_000] * 30)
    driver.replace_all(range(10), [5_000] * 10)
    driver.turn()
    assert driver.expire(2_000) == 20
    driver.close()


@pytest.mark.parametrize("timer", timers.TIMERS)
def test_timer_workloads_run(timer: str) -> None:
    """Both workloads come to an end and count what they did."""
    assert timers.add_cancel(timer, pending=1_500, seconds=0.001)["operations"] >= 500
    numbers = timers.add_expire(timer, count=2_000, delay_ms=50)
    assert numbers["operations"] == 2_000
    assert numbers["drain_rate"] > 0


def test_conditions_do_the_same_work() -> None:
    """The home-made purgatory ends what its marks pass, in the shapes the engine is measured in."""
    numbers = conditions.register_complete(keys=2, hot=2, pending=5, step=1, events=4, seconds=0.001)
    assert numbers["operations"] >= 1


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector as it was: the daemon's settings are for a process of its own."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
@pytest.mark.slow  # timers on the real clock
def test_lateness_is_measured_of_every_timer() -> None:
    """Every wait and every bare timer that was set is among the measured ones, and the percentiles are in order."""
    for numbers in (
        lateness.waits(rate=1_000, pending=100, seconds=0.03),
        lateness.timers(rate=1_000, seconds=0.03),
        lateness.uvloop_timers(rate=1_000, seconds=0.03),
    ):
        assert numbers["operations"] % 5 == 0
        assert numbers["operations"] >= 5
        assert numbers["earliest_ms"] <= numbers["p50_ms"] <= numbers["p99_ms"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_counted_work_checks_itself(name: str) -> None:
    """What is counted under valgrind runs without it too, and asserts by itself that all of it ended."""
    WORKLOADS[name](1_000)
