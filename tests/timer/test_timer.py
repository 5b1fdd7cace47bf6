"""The timer on a manual clock: when tasks run, moving them between timers, and the guarantees of cancel and close.

At the end the timer on an event loop: call_later that is never early, cancels in O(1), and does not block the loop.
"""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from purgatory.testing import ManualClock
from purgatory.timer import AsyncTimer, Timer, TimerClosed, TimerTask
from tests.engine.generic.recording_operation import DEADLINE_S, FineClock, fail
from tests.kit.recorded import assert_values_recorded

ARGUMENTS = Path(__file__).with_name("arguments.txt")


class Timers:
    """Timers on one clock, and a log of the tasks that ran."""

    def __init__(self, timers: int = 1, **settings: int) -> None:
        self.clock = ManualClock(1_000)
        self.reported: list[tuple[TimerTask, BaseException]] = []
        self.timers = [Timer(self.clock, on_error=self._on_error, **settings) for _ in range(timers)]
        self.timer = self.timers[0]
        self.log: list[str] = []

    def _on_error(self, task: TimerTask, error: BaseException) -> None:
        self.reported.append((task, error))

    def task(self, name: str, delay_ms: int, then: Callable[[], object] | None = None) -> TimerTask:
        def run() -> None:
            self.log.append(name)
            if then is not None:
                then()

        return TimerTask(delay_ms, run)

    def add(self, name: str, delay_ms: int, then: Callable[[], object] | None = None) -> TimerTask:
        task = self.task(name, delay_ms, then)
        self.timer.add(task)
        return task

    def pass_ms(self, ms: int, limit: int = 1_000) -> list[str]:
        """Advance the clock, run everything that is due, in slices of `limit`, and return what ran."""
        self.log.clear()
        self.clock.jump(ms)
        for timer in self.timers:
            while timer.advance_clock(limit):
                pass
        return list(self.log)


def test_never_early_by_a_fraction_of_a_millisecond() -> None:
    for tick_ms, first_ms in ((1, 16), (20, 20)):
        clock = FineClock(10)
        timer = Timer(clock, tick_ms=tick_ms)
        timer.add(TimerTask(5, int))
        while not timer.advance_clock():
            clock.jump(1)
        assert clock.now_ms() == first_ms


def test_task_may_add_others_and_itself_again() -> None:
    world = Timers()

    def add_more() -> None:
        world.timer.add(task)
        world.add("at once", 0)
        world.add("later", 5)

    task = world.add("tick", 10, add_more)
    assert world.pass_ms(10) == ["tick", "at once"]
    assert world.pass_ms(5) == ["later"]
    assert world.pass_ms(5) == ["tick", "at once"]
    assert task.cancel()
    assert world.pass_ms(100) == ["later"]


def test_task_that_runs_cannot_be_cancelled_and_one_that_was_cancelled_may_be_added_again() -> None:
    world = Timers()
    answers: list[bool] = []
    kept = world.add("kept", 10, lambda: answers.append(kept.cancel()))
    task = world.add("task", 10)
    assert [task.is_cancelled, world.timer.cancel(task), task.cancel(), task.is_cancelled] == [False, True, False, True]
    assert world.pass_ms(10) == ["kept"]
    assert [*answers, kept.cancel(), kept.is_cancelled, TimerTask(5).cancel()] == [False] * 4
    world.timer.add(task)
    assert not task.is_cancelled
    assert world.pass_ms(10) == ["task"]


def test_task_cancelled_or_moved_while_it_is_due_does_not_run() -> None:
    world = Timers()
    answers: list[bool] = []

    def cancel_and_move() -> None:
        answers.append(cancelled.cancel())
        world.timer.add(moved)

    world.add("first", 10, cancel_and_move)
    cancelled, moved = world.add("cancelled", 10), world.add("moved", 10)
    assert world.pass_ms(10) == ["first"]
    assert (answers, cancelled.is_cancelled, world.timer.size) == ([True], True, 1)
    assert world.pass_ms(10) == ["moved"]


@pytest.mark.parametrize("interrupt", [None, KeyboardInterrupt, SystemExit])
def test_task_that_raises_is_reported_and_others_run(interrupt: type[BaseException] | None) -> None:
    world = Timers()

    def fail() -> None:
        raise (interrupt or ArithmeticError)("planted")

    failing = world.add("failing", 10, fail)
    world.add("next", 10)
    world.add("later", 20)
    nothing_to_run = TimerTask(15)
    world.timer.add(nothing_to_run)
    world.clock.jump(10)
    if interrupt is None:
        assert world.timer.advance_clock() == 2
        assert [(task, type(error)) for task, error in world.reported] == [(failing, ArithmeticError)]
    else:
        with pytest.raises(interrupt, match="planted"):
            world.timer.advance_clock()
        assert world.reported == []
    assert world.log == ["failing", "next"]
    assert world.pass_ms(10) == ["later"]
    assert world.reported[-1][0] is nothing_to_run


def test_close_returns_what_is_left() -> None:
    world = Timers(timers=2)
    world.add("done", 5)
    closed: list[list[TimerTask]] = []
    world.add("closing", 10, lambda: closed.append(world.timer.close()))
    left = [world.add("left", delay_ms) for delay_ms in (0, 20, 10**30)]
    world.timer.cancel(left[0])
    elsewhere = world.task("elsewhere", 20)
    world.timers[1].add(elsewhere)
    assert world.pass_ms(10) == ["done", "closing"]
    assert closed == [left[1:]]
    assert all(task.is_cancelled for task in left)
    with pytest.raises(TimerClosed):
        world.timer.add(elsewhere)
    assert (world.timer.size, world.timer.next_expiration_ms(), world.timer.close()) == (0, -1, [])
    assert world.pass_ms(10) == ["elsewhere"]
    with world.timers[1] as timer:
        timer.add(left[1])
        assert not left[1].is_cancelled
    assert left[1].is_cancelled


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 1)),
    st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("pass"), st.integers(0, 40), st.sampled_from([1, 3, 1_000])),
)
DELAYS_MS = st.integers(-5, 60) | st.sampled_from([-(10**30), 10**30])


@given(st.lists(DELAYS_MS, min_size=6, max_size=6), st.lists(STEPS, max_size=60))
def test_any_history_against_a_model(delays_ms: list[int], steps: list[tuple[str, int, int]]) -> None:
    """Tasks without a delay run first, and all others by their time; in the order in which they were added."""
    world = Timers(timers=2, wheel_size=3)
    tasks = [world.task(str(number), delay_ms) for number, delay_ms in enumerate(delays_ms)]
    waiting: list[dict[int, int]] = [{}, {}]
    for step, number, more in steps:
        now_ms = world.clock.now_ms()
        if step == "add":
            world.timers[more].add(tasks[number])
            for one in waiting:
                one.pop(number, None)
            waiting[more][number] = now_ms + delays_ms[number] if delays_ms[number] > 0 else 0
        elif step == "cancel":
            assert tasks[number].cancel() == any(number in one for one in waiting)
            waiting = [{key: one[key] for key in one if key != number} for one in waiting]
        else:
            due = [[key for key in sorted(one, key=one.__getitem__) if one[key] <= now_ms + number] for one in waiting]
            assert world.pass_ms(number, limit=more) == [str(key) for keys in due for key in keys]
            waiting = [
                {key: one[key] for key in one if key not in keys} for one, keys in zip(waiting, due, strict=True)
            ]
        assert [timer.size for timer in world.timers] == [len(one) for one in waiting]
        assert [set(timer) for timer in world.timers] == [{tasks[number] for number in one} for one in waiting]
        for timer, one in zip(world.timers, waiting, strict=True):
            earliest_ms = min(one.values(), default=-1)
            next_ms = timer.next_expiration_ms()
            assert (0 <= next_ms <= max(earliest_ms, world.clock.now_ms())) if one else next_ms == -1


def test_arguments_are_checked_by_name() -> None:
    """As in arguments.txt."""
    assert_values_recorded(ARGUMENTS, {"Timer": Timer, "TimerTask": TimerTask})


# On an event loop.

WHERE = contextvars.ContextVar("WHERE", default="nowhere")


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_calls_come_in_order_and_never_early(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    log: list[tuple[str, float]] = []

    async def main() -> float:
        done = asyncio.Event()
        with AsyncTimer() as timer:
            added = time.monotonic()
            WHERE.set("here")
            for name, delay_ms in (("c", 30), ("a", 5), ("b", 5), ("now", 0)):
                timer.call_later(delay_ms, lambda name: log.append((name + WHERE.get(), time.monotonic())), name)
            WHERE.set("there")
            timer.call_later(31, done.set)
            assert (timer.size, log) == (5, [])
            async with asyncio.timeout(DEADLINE_S):
                await done.wait()
            assert (timer.size, timer._handle) == (0, None)
        return added

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        added = runner.run(main())
    assert [name for name, _ in log] == ["nowhere", "ahere", "bhere", "chere"]
    assert all(at - added >= delay_ms / 1000 for (_, at), delay_ms in zip(log, (0, 5, 5, 30), strict=True))


async def test_one_handle_of_the_loop_for_all() -> None:
    with AsyncTimer() as timer:
        tasks = [timer.call_later(60_000 - number, fail) for number in range(5_000)]
        scheduled: list[Any] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert len([handle for handle in scheduled if not handle.cancelled()]) == 1
        assert timer._armed_ms == timer.next_expiration_ms()
        assert all(task.cancel() for task in tasks)
        assert not tasks[0].cancel()
        assert timer.size == 0


@pytest.mark.parametrize("own_handler", [True, False])
async def test_call_that_raises_is_reported_and_others_run(own_handler: bool) -> None:
    loop, reported, done = asyncio.get_running_loop(), list[BaseException](), asyncio.Event()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    with AsyncTimer(on_error=(lambda _, error: reported.append(error)) if own_handler else None) as timer:
        timer.call_later(1, fail)
        timer.call_later(1, done.set)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
    assert [type(error) for error in reported] == [ArithmeticError]


async def test_the_loop_has_its_turn_between_slices() -> None:
    loop, log, done = asyncio.get_running_loop(), list[str](), asyncio.Event()
    with AsyncTimer() as timer:
        timer.call_later(0, loop.call_soon, log.append, "other")
        for _ in range(3_000):
            timer.call_later(0, log.append, "call")
        timer.call_later(1, done.set)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
    assert log.count("call") == 3_000
    assert 0 < log.index("other") < 3_000


async def test_other_threads_may_add_and_cancel() -> None:
    made_on: list[int] = []
    done = asyncio.Event()
    with AsyncTimer() as timer:
        timer.call_later(60_000, fail)

        def from_elsewhere() -> None:
            timer.add(task := TimerTask(1, fail))
            assert task.cancel()
            timer.call_later(5, lambda: made_on.append(threading.get_ident()))
            timer.call_later(6, done.set)

        await asyncio.to_thread(from_elsewhere)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        assert made_on == [threading.get_ident()]


async def test_close_cancels_and_returns_the_calls_left() -> None:
    timer = AsyncTimer()
    tasks = [timer.call_later(60_000, fail) for _ in range(3)]
    handle = timer._handle
    assert handle is not None
    assert timer.close() == tasks
    assert handle.cancelled()
    assert all(task.is_cancelled for task in tasks)
    with pytest.raises(TimerClosed):
        timer.call_later(1, fail)


def test_a_closed_loop_refuses_calls() -> None:
    async def make() -> AsyncTimer:
        return AsyncTimer()

    timer = asyncio.run(make())
    with pytest.raises(TimerClosed, match="loop is closed"):
        timer.call_later(1, fail)
    assert timer.size == 0
