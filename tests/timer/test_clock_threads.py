"""The threads of the embedded purgatory and of the timer: on time, asleep when nothing is due, and robust.

Most tests run on both, which `add`, `cancel` and `thread_of` give one interface. Then follow those of the timer alone:
its executor, concurrent adds and cancels, close, forks.
"""

import itertools
import logging
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.testing import ManualClock
from purgatory.threads import SLICE_NS, ClockThread, run_promptly
from purgatory.timer import SystemTimer, TimerClosed, TimerTask
from tests.embedded.test_crowd import all_stacks
from tests.engine.generic.recording_operation import DEADLINE_S, Gate, RecordingOperation, fail, run_all, threads_of
from tests.kit.eventually import wait_until

Owner = EmbeddedPurgatory | SystemTimer
both_owners = pytest.mark.parametrize("kind", [EmbeddedPurgatory, SystemTimer], ids=["purgatory", "timer"])


class Signal(TimerTask):
    """A task that records when and where it ran, with the attributes of RecordingOperation."""

    def __init__(self, delay_ms: int, then: Callable[[], object] | None = None) -> None:
        super().__init__(delay_ms)
        self.answered = threading.Event()
        self.answered_on = ""
        self.answered_at_ms = -1
        self.when_completed = then

    def run(self) -> None:
        self.answered_on = threading.current_thread().name
        self.answered_at_ms = SystemClock().now_ms()
        try:
            if self.when_completed is not None:
                self.when_completed()
        finally:
            self.answered.set()


def add(owner: Owner, delay_ms: int, then: Callable[[], object] | None = None) -> RecordingOperation | Signal:
    """Add an operation or task that the owner's thread ends after a delay."""
    if isinstance(owner, SystemTimer):
        task = Signal(delay_ms, then)
        owner.add(task)
        return task
    operation = RecordingOperation(delay_ms)
    operation.when_completed = then
    owner.try_complete_else_watch(operation, ["k"])
    return operation


def cancel(owner: Owner, one: RecordingOperation | Signal) -> bool:
    return one.cancel() if isinstance(one, Signal) else isinstance(owner, EmbeddedPurgatory) and owner.cancel(one)


def thread_of(owner: Owner) -> ClockThread:
    thread = owner._thread if isinstance(owner, SystemTimer) else owner._reaper
    assert thread is not None
    return thread


def run_forking(script: str, *arguments: str) -> None:
    """Run a script that forks in a separate process; it must exit with 0 and print nothing."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stderr) == (0, "")


@both_owners
def test_case_31_it_fires_by_itself_and_never_early(kind: type[Owner]) -> None:
    with kind("test") as owner:
        added_at_ms = SystemClock().now_ms()
        far = add(owner, 60_000)
        waiting = {delay_ms: add(owner, delay_ms) for delay_ms in (30, 5, 0)}
        for delay_ms, one in waiting.items():
            assert one.answered.wait(DEADLINE_S)
            assert one.answered_at_ms - added_at_ms >= delay_ms
            assert one.answered_on.startswith(("executor-test", "ExpirationReaper-test"))
        assert not far.answered.is_set()
        wait_until(lambda: thread_of(owner).armed_ms == owner.next_expiration_ms())


@both_owners
def test_a_quiet_system_still_fires(kind: type[Owner]) -> None:
    with kind("quiet") as owner:
        for delay_ms in (60_000, 30_000, 90_000):
            cancelled = add(owner, delay_ms)
            wait_until(lambda: 0 <= thread_of(owner).armed_ms <= owner.next_expiration_ms())
            assert cancel(owner, cancelled)
        for _ in range(2):
            assert add(owner, 10).answered.wait(DEADLINE_S)
            wait_until(lambda: thread_of(owner).armed_ms == -1)


@both_owners
def test_wake_ups_are_not_lost(kind: type[Owner]) -> None:
    with kind("hasty") as owner:
        left_alone = []
        for number in range(300):
            one = add(owner, number % 4)
            if number % 3:
                cancel(owner, one)
            else:
                left_alone.append(one)
        assert all(one.answered.wait(DEADLINE_S) for one in left_alone)


@both_owners
def test_addition_just_before_the_thread_sleeps_wakes_it(kind: type[Owner], monkeypatch: pytest.MonkeyPatch) -> None:
    with kind("window") as owner:
        look = thread_of(owner)._wait_ms
        late: list[RecordingOperation | Signal] = []

        def look_and_let_someone_in() -> int:
            wait_ms = look()
            if wait_ms < 0 and len(late) < 3:
                late.append(add(owner, 1))
            return wait_ms

        monkeypatch.setattr(thread_of(owner), "_wait_ms", look_and_let_someone_in)
        add(owner, 0)
        wait_until(lambda: len(late) == 3)
        assert all(one.answered.wait(DEADLINE_S) for one in late), f"it sleeps:\n{all_stacks()}"


@both_owners
def test_it_sleeps_while_nothing_is_due(kind: type[Owner]) -> None:
    reads = itertools.count()

    class CountingClock(SystemClock):
        def now_ms(self) -> int:
            next(reads)
            return super().now_ms()

    with kind("asleep", clock=CountingClock()) as asleep, kind("awake") as awake:
        add(asleep, 10**9)
        wait_until(lambda: thread_of(asleep).armed_ms > 0)
        before = next(reads)
        # On the other owner, one is added and ends in the meantime.
        assert add(awake, 30).answered.wait(DEADLINE_S)
        assert next(reads) <= before + 2


@both_owners
@pytest.mark.parametrize("failure", [ArithmeticError, SystemExit, KeyboardInterrupt])
def test_the_thread_survives_anything(
    kind: type[Owner], caplog: pytest.LogCaptureFixture, failure: type[BaseException]
) -> None:
    def tear() -> None:
        raise failure("planted")

    with caplog.at_level(logging.ERROR, "purgatory"), kind("torn") as owner:
        add(owner, 5, tear)
        beside = add(owner, 5)
        assert beside.answered.wait(DEADLINE_S)
        assert add(owner, 10).answered.wait(DEADLINE_S)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "planted" in caplog.text


@both_owners
def test_it_survives_a_failing_clock(kind: type[Owner], caplog: pytest.LogCaptureFixture) -> None:
    failures = 3

    class FailingClock(SystemClock):
        def now_ms(self) -> int:
            nonlocal failures
            if failures and threading.current_thread().name.endswith("-failing"):
                failures -= 1
                raise OSError("no time")
            return super().now_ms()

    with caplog.at_level(logging.CRITICAL, "purgatory"), kind("failing", clock=FailingClock()) as owner:
        assert add(owner, 10).answered.wait(DEADLINE_S)
        assert (failures, thread_of(owner).failures) == (0, 3)


@both_owners
def test_close_from_within(kind: type[Owner]) -> None:
    """Closing within an effect or a task returns the rest instead of waiting for its own thread."""
    owner = kind("closing")
    leftovers = [add(owner, 60_000) for _ in range(10)]
    closed: list[object] = []
    closing = add(owner, 5, lambda: closed.append(owner.close()))
    assert closing.answered.wait(DEADLINE_S)
    assert closed == [10 if kind is EmbeddedPurgatory else leftovers]
    wait_until(lambda: threads_of("closing") == [])
    assert not owner.close()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (EmbeddedPurgatory, r"reaper_enabled=False and call advance_clock\(\)"),
        (SystemTimer, r"use Timer and call advance_clock\(\)"),
    ],
    ids=["purgatory", "timer"],
)
def test_a_manual_clock_is_refused(kind: type[Owner], says: str) -> None:
    """A manual clock is refused, with the alternative, before the thread is started: a thread sleeps in real time and
    would never end anything.
    """
    with pytest.raises(ValueError, match=says):
        kind("manual", clock=ManualClock())
    assert threads_of("manual") == []
    EmbeddedPurgatory("manual", clock=ManualClock(), timer_enabled=False).close()


# The timer alone.


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


@pytest.mark.skipif([int(part) for part in os.uname().release.split(".")[:2]] < [6, 12], reason="no slices of threads")
def test_a_prompt_thread_has_a_short_slice_and_keeps_its_nice_value() -> None:
    with ThreadPoolExecutor(1) as pool:
        nice = pool.submit(os.nice, 1).result()
        pool.submit(run_promptly).result()
        assert pool.submit(os.nice, 0).result() == nice
        assert re.search(rf"se.slice +: +{SLICE_NS}\n", pool.submit(Path("/proc/thread-self/sched").read_text).result())
