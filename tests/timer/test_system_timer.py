"""The timer with a thread and an executor: it runs tasks by itself, under threads, shutdowns, forks and failures."""

import itertools
import logging
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from purgatory.clock import SystemClock
from purgatory.testing import ManualClock
from purgatory.timer import SystemTimer, TimerClosed, TimerTask
from tests.engine.generic.recording_operation import DEADLINE_S, fail, run_all, wait_until


@pytest.fixture
def timer() -> Iterator[SystemTimer]:
    with SystemTimer("test") as one:
        yield one


class Signal(TimerTask):
    """Says when and where it ran."""

    def __init__(self, delay_ms: int, then: Callable[[], object] = int) -> None:
        super().__init__(delay_ms)
        self.ran = threading.Event()
        self.ran_on = ""
        self.ran_at_ms = -1
        self.then = then

    def run(self) -> None:
        self.ran_on = threading.current_thread().name
        self.ran_at_ms = SystemClock().now_ms()
        try:
            self.then()
        finally:
            self.ran.set()


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if name in thread.name]


def test_it_runs_tasks_by_itself_and_never_early(timer: SystemTimer) -> None:
    """Each task runs at its time or later, on the executor's thread; a shorter one wakes the thread in time."""
    far, added_at_ms = Signal(60_000), SystemClock().now_ms()
    timer.add(far)
    tasks = [Signal(delay_ms) for delay_ms in (30, 5, 0)]
    for task in tasks:
        timer.add(task)
    for task in tasks:
        assert task.ran.wait(DEADLINE_S)
        assert task.ran_at_ms - added_at_ms >= task.delay_ms
        assert task.ran_on.startswith("executor-test")
    assert (timer.size, far.ran.is_set()) == (1, False)
    wait_until(lambda: timer._thread.armed_ms == timer.next_expiration_ms())


def test_it_sleeps_until_the_next_bucket() -> None:
    """With everything far away the thread sleeps: its clock is not read again."""
    reads = itertools.count()

    class CountingClock(SystemClock):
        def now_ms(self) -> int:
            next(reads)
            return super().now_ms()

    with SystemTimer("asleep", clock=CountingClock()) as asleep, SystemTimer("awake") as awake:
        asleep.add(Signal(10**9))
        wait_until(lambda: asleep._thread.armed_ms > 0)
        before = next(reads)
        other = Signal(30)
        awake.add(other)
        assert other.ran.wait(DEADLINE_S)
        assert next(reads) <= before + 2


@pytest.mark.parametrize("failure", [ArithmeticError, SystemExit, KeyboardInterrupt])
def test_a_task_that_raises_hurts_nobody(caplog: pytest.LogCaptureFixture, failure: type[BaseException]) -> None:
    """Whatever a task raises is logged, and the tasks beside it and behind it run."""

    def tear() -> None:
        raise failure("planted")

    with caplog.at_level(logging.ERROR, "purgatory.timer"), SystemTimer("torn") as timer:
        for task in (Signal(5, tear), beside := Signal(5), later := Signal(10)):
            timer.add(task)
        assert beside.ran.wait(DEADLINE_S)
        assert later.ran.wait(DEADLINE_S)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "planted" in caplog.text


def test_an_executor_of_the_callers() -> None:
    """It runs the tasks and outlives the timer; when it has been shut down, on_error hears of the task."""
    told: list[tuple[TimerTask, str]] = []
    executor = ThreadPoolExecutor(1, "mine")
    with SystemTimer(executor=executor, on_error=lambda task, error: told.append((task, str(error)))) as timer:
        ran, failing, late = Signal(1), Signal(1, fail), Signal(1)
        for task in (ran, failing):
            timer.add(task)
            assert task.ran.wait(DEADLINE_S)
            assert task.ran_on.startswith("mine")
        wait_until(lambda: told == [(failing, "planted")])
    assert executor.submit(int).result(DEADLINE_S) == 0
    executor.shutdown()
    with SystemTimer(executor=executor, on_error=lambda task, error: told.append((task, str(error)))) as timer:
        timer.add(late)
        wait_until(lambda: told[-1][0] is late)
        assert "shutdown" in told[-1][1]


def test_close_with_tasks_left() -> None:
    """Those that wait are returned, cancelled; what runs is waited for; no thread stays; tasks are refused."""
    timer = SystemTimer("closing")
    entered, release = threading.Event(), threading.Event()
    log: list[str] = []

    def block() -> None:
        entered.set()
        assert release.wait(DEADLINE_S)
        log.append("ran")

    running, behind, waiting = Signal(0, block), Signal(0, lambda: log.append("behind")), Signal(60_000)
    for task in (running, behind, waiting):
        timer.add(task)
    assert entered.wait(DEADLINE_S)
    wait_until(lambda: timer.size == 1)
    threading.Timer(0.01, release.set).start()
    assert timer.close() == [waiting]
    assert (log, waiting.is_cancelled, behind.is_cancelled) == (["ran", "behind"], True, False)
    assert threads_of("-closing") == []
    assert timer.close() == []
    with pytest.raises(TimerClosed):
        timer.add(waiting)


def test_close_within_a_task() -> None:
    """It returns what is left at once, instead of waiting for the very task that it is called from."""
    timer = SystemTimer("closing")
    left = Signal(60_000)
    closed: list[list[TimerTask]] = []
    closing = Signal(5, lambda: closed.append(timer.close()))
    for task in (left, closing):
        timer.add(task)
    assert closing.ran.wait(DEADLINE_S)
    assert closed == [[left]]
    wait_until(lambda: threads_of("-closing") == [])


def test_one_task_in_two_timers_by_two_threads(timer: SystemTimer) -> None:
    """However threads add one task to two timers, it is in one of them at the end, and runs once."""
    with SystemTimer("other") as other:
        for _ in range(100):
            counted = itertools.count()
            task = Signal(60_000, partial(next, counted))
            run_all(partial(timer.add, task), partial(other.add, task))
            assert timer.size + other.size == 1
            task.delay_ms = 0
            run_all(partial(timer.add, task), partial(other.add, task))
            assert task.ran.wait(DEADLINE_S)
            wait_until(lambda: timer.size + other.size == 0)
            task.cancel()
            assert 1 <= next(counted) <= 2, "twice only if one timer had run it before the other was asked"


@pytest.mark.slow
def test_cancel_means_that_it_does_not_run(timer: SystemTimer) -> None:
    """Eight threads cancel while tasks fire: a task whose cancel was True never ran, every other did, once."""
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


def test_a_manual_clock_says_what_to_do() -> None:
    """It would not wake the thread: refused, with the way out, and no thread is left."""
    with pytest.raises(ValueError, match=r"use Timer and call advance_clock\(\)"):
        SystemTimer("manual", clock=ManualClock())
    assert threads_of("-manual") == []


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
    """Every call in the child raises UsedAfterFork; its own timers work; the parent's go on."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stderr) == (0, "")
