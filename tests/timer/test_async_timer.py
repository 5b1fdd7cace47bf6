"""The timer on an event loop: call_later that is never early, cancels in O(1), and does not block the loop."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from purgatory.timer import AsyncTimer, TimerClosed, TimerTask
from tests.engine.generic.recording_operation import DEADLINE_S, fail

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
