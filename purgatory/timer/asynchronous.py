"""`AsyncTimer`: a timer on an asyncio event loop that needs one timer handle of the loop for all its tasks."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Final, SupportsIndex

from purgatory.timer.tasks import OnTaskError, Timer, TimerClosed, TimerTask


class _Call(TimerTask):
    """A call of `call_later`, in the context of its caller."""

    __slots__ = ("_context",)

    def __init__(self, delay_ms: SupportsIndex, function: Callable[[], object]) -> None:
        super().__init__(delay_ms, function)
        self._context = contextvars.copy_context()

    def run(self) -> None:
        self._context.run(super().run)


class AsyncTimer(Timer):
    """A timer whose tasks run on the running event loop: `call_later` that is never early and cancels in O(1).

    Create it within the loop. `add`, `call_later` and `cancel` may be called from any thread. Exceptions of tasks go to
    `on_error`, by default the loop's exception handler. The loop's other work runs between slices of 1,000 tasks.
    """

    def __init__(
        self, *, tick_ms: SupportsIndex = 1, wheel_size: SupportsIndex = 20, on_error: OnTaskError | None = None
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._thread_id: Final = threading.get_ident()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ms = -1
        # Not the loop's own time: uvloop rounds it down to milliseconds, so a delay could end a fraction early.
        super().__init__(tick_ms=tick_ms, wheel_size=wheel_size, on_error=on_error or self._report_to_loop)

    def call_later(self, delay_ms: SupportsIndex, callback: Callable[..., object], *arguments: object) -> TimerTask:
        """Call `callback(*arguments)` on the loop after a delay, in a copy of the caller's context.

        Args:
            delay_ms: Milliseconds; 0 or less: in the next iteration of the loop.
            callback: A plain function, as for the loop's own `call_later`.
            arguments: Passed to the callback.

        Returns:
            The task; its `cancel()` is O(1) and leaves nothing in the loop.

        Raises:
            TypeError: `delay_ms` is not an integer.
            TimerClosed: After `close`.
        """
        task = _Call(delay_ms, lambda: callback(*arguments))
        self.add(task)
        return task

    def add(self, task: TimerTask) -> None:
        """As for `Timer`. Also raises TimerClosed if the loop is closed."""
        if self._loop.is_closed():
            raise TimerClosed("the timer's event loop is closed")
        super().add(task)

    def close(self) -> list[TimerTask]:
        """Reject tasks from now on. Cancels and returns the tasks that have not run."""
        left = super().close()
        self._changed()
        return left

    def _changed(self) -> None:
        if threading.get_ident() == self._thread_id:
            self._arm()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        """Schedule the next call with the loop; after a cancellation it may find nothing to do."""
        next_ms = -1 if self._is_closed else self.next_expiration_ms()
        if self._handle is not None:
            # An earlier handle is kept: it comes back, finds nothing due and arms again. The loop keeps cancelled
            # handles for a while, so replacing it for each added task would fill the loop's heap.
            if 0 <= self._armed_ms <= next_ms:
                return
            self._handle.cancel()
            self._handle = None
        if next_ms >= 0:
            self._armed_ms = next_ms
            self._handle = self._loop.call_later(max(0, next_ms - self._clock.now_ms()) / 1000, self._come_back)

    def _come_back(self) -> None:
        self._handle = None
        try:
            self.advance_clock()
        finally:
            self._arm()

    def _report_to_loop(self, task: TimerTask, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"{task!r} raised", "exception": error})
