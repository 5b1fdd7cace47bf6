"""A shared answer: what its callers get when the computation fails or is cancelled."""

import asyncio

import pytest

from purgatory.service.rpc import single_flight
from purgatory.service.rpc.single_flight import SingleFlight


async def test_a_cancelled_computation_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an earlier answer could still be reused, a computation is cancelled: the next caller gets a new one."""
    monkeypatch.setattr(single_flight, "NOT_KEPT_S_MAX", -1.0)
    monkeypatch.setattr(single_flight, "KEPT_TIMES", 1_000_000_000)
    began: list[asyncio.Task[int]] = []
    hanging = asyncio.Event()
    is_hanging = False

    async def compute() -> int:
        task = asyncio.current_task()
        assert task is not None
        began.append(task)
        if is_hanging:
            hanging.set()
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        return len(began)

    shared = SingleFlight(compute)
    assert [await shared.get() for _ in range(2)] == [1, 1]
    shared._kept_until_s, is_hanging = 0.0, True
    waiting = asyncio.create_task(shared.get())
    await hanging.wait()
    shared._kept_until_s, is_hanging = float("inf"), False
    began[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await shared.get() == 3


async def test_a_failed_computation_is_not_reused() -> None:
    answers: list[Exception | int] = [ValueError("a fault"), 7]

    async def compute() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SingleFlight(compute)
    shared._kept_until_s = float("inf")
    with pytest.raises(ValueError, match="a fault"):
        await shared.get()
    assert await shared.get() == 7
