"""The timer with a thread and an executor: concurrent adds and cancels, executors, close, forks."""

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from purgatory.timer import SystemTimer, TimerClosed, TimerTask
from tests.engine.generic.recording_operation import DEADLINE_S, Gate, fail, run_all, threads_of, wait_until
from tests.timer.clock_threads import Signal, run_forking


@pytest.fixture
def timer() -> Iterator[SystemTimer]:
    with SystemTimer("test") as one:
        yield one


def test_executor_of_the_caller_runs_tasks_and_outlives_the_timer() -> None:
    reported: list[tuple[TimerTask, str]] = []
    executor = ThreadPoolExecutor(1, "mine")

    def on_error(task: TimerTask, error: BaseException) -> None:
        reported.append((task, str(error)))

    with SystemTimer(executor=executor, on_error=on_error) as timer:
        ran, failing, late = Signal(1), Signal(1, fail), Signal(1)
        for task in (ran, failing):
            timer.add(task)
            assert task.answered.wait(DEADLINE_S)
            assert task.answered_on.startswith("mine")
        wait_until(lambda: reported == [(failing, "planted")])
    assert executor.submit(int).result(DEADLINE_S) == 0
    executor.shutdown()
    with SystemTimer(executor=executor, on_error=on_error) as timer:
        timer.add(late)
        wait_until(lambda: reported[-1][0] is late)
        assert "shutdown" in reported[-1][1]


def test_close_cancels_waiting_tasks_and_waits_for_running_ones() -> None:
    timer = SystemTimer("closing")
    gate = Gate()
    running, behind, waiting = Signal(0, gate), Signal(0), Signal(60_000)
    for task in (running, behind, waiting):
        timer.add(task)
    gate.wait_until_reached()
    wait_until(lambda: timer.size == 1)
    threading.Timer(0.01, gate.is_open.set).start()
    assert timer.close() == [waiting]
    assert running.answered.is_set()
    assert behind.answered.is_set()
    assert (waiting.is_cancelled, behind.is_cancelled) == (True, False)
    assert threads_of("closing") == []
    assert timer.close() == []
    with pytest.raises(TimerClosed):
        timer.add(waiting)


def test_one_task_in_two_timers_by_two_threads(timer: SystemTimer) -> None:
    """If threads add one task to two timers concurrently, it is in one of them at the end, and runs once."""
    with SystemTimer("other") as other:
        for _ in range(100):
            counted = itertools.count()
            task = Signal(60_000, partial(next, counted))
            run_all(partial(timer.add, task), partial(other.add, task))
            assert timer.size + other.size == 1
            task.delay_ms = 0
            run_all(partial(timer.add, task), partial(other.add, task))
            assert task.answered.wait(DEADLINE_S)
            wait_until(lambda: timer.size + other.size == 0)
            task.cancel()
            assert 1 <= next(counted) <= 2, "twice only if one timer had run it before the other was asked"


@pytest.mark.slow
def test_cancel_means_that_it_does_not_run(timer: SystemTimer) -> None:
    ran: list[int] = []
    cancelled: list[int] = []

    def add_and_cancel(first: int) -> None:
        rng = random.Random(first)
        tasks = [TimerTask(rng.randrange(4), partial(ran.append, first + n)) for n in range(300)]
        for number, task in enumerate(tasks):
            timer.add(task)
            victim = rng.randrange(number + 1)
            if tasks[victim].cancel():
                cancelled.append(first + victim)

    run_all(*(partial(add_and_cancel, first) for first in range(0, 8_000, 1_000)))
    everyone = [first + n for first in range(0, 8_000, 1_000) for n in range(300)]
    wait_until(lambda: len(ran) + len(cancelled) >= len(everyone))
    assert sorted(ran + cancelled) == everyone
    assert timer.size == 0


FORKING = """
import os, sys
from purgatory.timer import SystemTimer, TimerTask, UsedAfterFork

timer = SystemTimer("forked")
ran = []
task = TimerTask(100, lambda: ran.append(os.getpid()))
timer.add(task)
child = os.fork()
if child == 0:
    code = 0
    for call in (lambda: timer.size, lambda: timer.add(TimerTask(1)), task.cancel, timer.advance_clock, timer.close):
        try:
            call()
            code = 1
        except UsedAfterFork:
            pass
    with SystemTimer("the child's own") as own:
        mine = TimerTask(1, lambda: ran.append(0))
        own.add(mine)
        while not ran:
            pass
    os._exit(code + 2 * (ran != [0]))
_, status = os.waitpid(child, 0)
while not ran:
    pass
assert ran == [os.getpid()]
timer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
def test_a_forked_child_is_told() -> None:
    run_forking(FORKING)
