"""Answers that cost much and are the same for all who ask: computed once for those who ask at the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

Answer = TypeVar("Answer")

KEPT_TIMES: Final = 10
"""An answer is kept ten times as long as it took, so that at most a part in eleven of the loop goes into it,"""
KEPT_S_MAX: Final = 1.0
"""but not longer than this."""
NOT_KEPT_S_MAX: Final = 0.005
"""What was computed within this time is not kept."""


class SharedAnswer(Generic[Answer]):
    """`compute` runs in a task of its own, one at a time, whoever of those that wait for it goes away."""

    def __init__(self, compute: Callable[[], Awaitable[Answer]]) -> None:
        self._compute: Final = compute
        self._task: asyncio.Task[Answer] | None = None
        self._kept_until_s = 0.0

    async def get(self) -> Answer:
        """The answer as of now, or as of a moment ago."""
        task = self._task
        if task is None or (task.done() and (time.monotonic() >= self._kept_until_s or task.exception() is not None)):
            task = self._task = asyncio.create_task(self._run(), name="shared answer")
        return await asyncio.shield(task)

    async def _run(self) -> Answer:
        began_s = time.monotonic()
        answer = await self._compute()
        now_s = time.monotonic()
        took_s = now_s - began_s
        if took_s > NOT_KEPT_S_MAX:
            self._kept_until_s = now_s + min(KEPT_S_MAX, KEPT_TIMES * took_s)
        return answer
