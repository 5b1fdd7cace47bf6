"""`SystemTimer`: a timer with a thread that sleeps until the next bucket is due, and an executor that runs tasks."""

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, SupportsIndex

from purgatory.clock import Clock
from purgatory.threads import ClockThread
from purgatory.timer.tasks import OnTaskError, Timer, TimerTask, logger


class _Inside(threading.local):
    """Whether this thread is running one of the timer's tasks."""

    task = False


class SystemTimer(Timer):
    """A timer that runs its tasks by itself. Close it, or use it as a context manager.

    Tasks with the same deadline are submitted to the executor in the order in which they were added.

    Args:
        name: For threads and messages.
        executor: Runs the tasks; the caller shuts it down. By default the timer has one thread of its own.
        clock, tick_ms, wheel_size, on_error: As for `Timer`; `on_error` is called on the executor's thread.
    """

    def __init__(
        self,
        name: str = "timer",
        *,
        executor: Executor | None = None,
        clock: Clock | None = None,
        tick_ms: SupportsIndex = 1,
        wheel_size: SupportsIndex = 20,
        on_error: OnTaskError | None = None,
    ) -> None:
        if getattr(clock, "is_manual", False):
            raise ValueError("clock: a manual clock does not wake the thread; use Timer and call advance_clock()")
        super().__init__(clock, tick_ms=tick_ms, wheel_size=wheel_size, on_error=on_error)
        self.name: Final = name
        self._owns_executor: Final = executor is None
        self._executor: Final = ThreadPoolExecutor(1, f"executor-{name}") if executor is None else executor
        self._inside: Final = _Inside()
        self._thread: Final = ClockThread(f"SystemTimer-{name}", self.advance_clock, self._wait_ms)
        self._thread.start()

    def close(self) -> list[TimerTask]:
        """Reject tasks and stop the thread. Cancels and returns the tasks that have not run.

        Tasks that were due still run, and this call waits for them if the executor is the timer's own. It does not wait
        if it is called from within a task.
        """
        left = super().close()
        self._thread.stop()
        if self._owns_executor:
            # A task that closes its own timer would wait for itself.
            self._executor.shutdown(wait=not self._inside.task)
        return left

    def _changed(self) -> None:
        self._thread.wake_before(self._next_expiration_ms())

    def _wait_ms(self) -> int:
        with self._lock:
            # Under the lock: a task that is added in between compares its deadline with `armed_ms` to see whether to
            # wake the thread.
            self._thread.armed_ms = next_ms = self._next_expiration_ms()
            return -1 if next_ms < 0 else max(0, next_ms - self._clock.now_ms())

    def _hand_over(self, task: TimerTask, turn: int) -> None:
        try:
            self._executor.submit(self._run_on_executor, task, turn)
        except RuntimeError as error:  # the executor has been shut down
            self._on_error(task, error)

    def _run_on_executor(self, task: TimerTask, turn: int) -> None:
        self._inside.task = True
        try:
            self._run(task, turn)
        except BaseException as error:  # noqa: BLE001 - the executor would store it in a future that is never read
            logger.error("%s: %r raised", self.name, task, exc_info=error)
        finally:
            self._inside.task = False
