"""Expensive answers that are the same for every caller: concurrent requests share one computation."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

Answer = TypeVar("Answer")

KEPT_TIMES: Final = 10
"""An answer is reused for ten times as long as it took to compute: at most an eleventh of the loop's time."""
KEPT_S_MAX: Final = 1.0
"""Upper limit of that time."""
NOT_KEPT_S_MAX: Final = 0.005
"""An answer that took less time than this is not reused."""


class SingleFlight(Generic[Answer]):
    """Runs `compute` in its own task, one at a time, so that it survives callers that disconnect."""

    def __init__(self, compute: Callable[[], Awaitable[Answer]]) -> None:
        self._compute: Final = compute
        self._task: asyncio.Task[Answer] | None = None
        self._kept_until_s = 0.0

    async def get(self) -> Answer:
        """Return the answer, which may be up to `KEPT_S_MAX` old."""
        task = self._task
        if task is None or (task.done() and (time.monotonic() >= self._kept_until_s or _has_failed(task))):
            task = self._task = asyncio.create_task(self._run(), name="shared answer")
        # The computation belongs to all of its callers. Any one of them may be cancelled.
        return await asyncio.shield(task)

    async def _run(self) -> Answer:
        began_s = time.monotonic()
        answer = await self._compute()
        now_s = time.monotonic()
        took_s = now_s - began_s
        if took_s > NOT_KEPT_S_MAX:
            self._kept_until_s = now_s + min(KEPT_S_MAX, KEPT_TIMES * took_s)
        return answer


def _has_failed(task: asyncio.Task[Answer]) -> bool:
    # `exception` of a cancelled task raises CancelledError, which would cancel the caller.
    return task.cancelled() or task.exception() is not None
