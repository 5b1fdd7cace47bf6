"""`TimerTask` and `Timer`: tasks in the engine's timing wheel, under a lock. A timer's owner advances its clock."""

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from typing import Final, Self, SupportsIndex

from purgatory.clock import Clock, given_or_system_clock
from purgatory.engine.generic.argument_checks import in_range, whole_number
from purgatory.engine.generic.operation import chained
from purgatory.engine.waiting.wheel import DEADLINE_BITS, TICK_MS_MAX, WHEEL_SIZE_MAX, TimingWheel
from purgatory.threads import ClockThread, RefusedAfterFork, refuse_after_fork

logger = logging.getLogger(__name__)

SLICE: Final = 1_000
"""Default for the maximum number of tasks that one `advance_clock` takes out of the wheel."""
DELAY_MS_MAX: Final = 2**DEADLINE_BITS

IDLE: Final = 0
WAITING: Final = 1
DUE: Final = 2
CANCELLED: Final = 3


class TimerClosed(RuntimeError):
    """A task was added to a timer after `close`. It was not touched."""


class _Places:
    """The one lock of all timers: a task may move from one timer to another, and both must agree on where it is."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def after_fork_in_child(self) -> None:
        self.lock = threading.RLock()


_places: Final = _Places()
refuse_after_fork(_places)


class TimerTask:
    """Something to run once, `delay_ms` after it was added to a timer. Pass a function, or override `run`.

    A task is in one place: adding it again, to the same timer or another, removes it from where it was. It may be added
    again after it has run, or from within its `run`. Attributes named `timer_…` belong to the timer.

    Args:
        delay_ms: Milliseconds from `Timer.add`; 0 or less: immediately.
        function: Called by `run`.

    Raises:
        TypeError: `delay_ms` is not an integer.
    """

    __slots__ = ("__weakref__", "_function", "delay_ms", "timer_owner", "timer_slot", "timer_state", "timer_turn")

    def __init__(self, delay_ms: SupportsIndex, function: Callable[[], object] | None = None) -> None:
        self.delay_ms: int = whole_number("delay_ms", delay_ms)
        self._function = function
        self.timer_owner: Timer | None = None
        self.timer_slot = -1
        self.timer_state = IDLE
        self.timer_turn = 0  # counts adds and cancels: a run submitted before the latest of these is void

    def run(self) -> None:
        """Run the task. An Exception goes to the timer's `on_error`."""
        if self._function is None:
            raise NotImplementedError("give the task a function, or override run")
        self._function()

    def cancel(self) -> bool:
        """Remove it from its timer. True: it will not run. False: it is running, has run, or was never added."""
        with _places.lock:
            timer = self.timer_owner
            return timer is not None and timer.cancel(self)

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, by a call or by closing its timer, and has not been added again since."""
        return self.timer_state == CANCELLED


OnTaskError = Callable[[TimerTask, BaseException], object]


def log_error(task: TimerTask, error: BaseException) -> None:
    """The default `on_error`: log the exception of a task, with its traceback."""
    logger.error("%r raised", task, exc_info=error)


class Timer:
    """Tasks in a timing wheel. Its owner calls `advance_clock`, which runs due tasks on the calling thread.

    Every method may be called from any thread and from within tasks. After a fork, every call in the child raises
    UsedAfterFork.

    Args:
        clock: The source of time; by default the machine's monotonic clock.
        tick_ms: Deadlines are rounded up to a multiple of this, in milliseconds.
        wheel_size: Buckets of each level of the wheel.
        on_error: Called as `on_error(task, exception)` for exceptions of tasks. By default they are logged.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range; the message names it.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        tick_ms: SupportsIndex = 1,
        wheel_size: SupportsIndex = 20,
        on_error: OnTaskError | None = None,
    ) -> None:
        if on_error is not None and not callable(on_error):
            raise TypeError(f"on_error: a function of a task and an exception is expected, not {on_error!r}")
        tick = in_range("tick_ms", tick_ms, 1, TICK_MS_MAX)
        size = in_range("wheel_size", wheel_size, 2, WHEEL_SIZE_MAX)
        self._clock: Final = given_or_system_clock(clock)
        self._on_error: Final[OnTaskError] = log_error if on_error is None else on_error
        self._wheel: Final = TimingWheel(tick, size, self._clock.now_ms())
        self._due: Final[dict[int, None]] = {}
        self._tasks: Final[list[TimerTask | None]] = []
        self._free_slots: Final[list[int]] = []
        self._is_closed = False
        self._made_in: Final = os.getpid()
        self._lock: threading.RLock | RefusedAfterFork = _places.lock
        refuse_after_fork(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Number of tasks that have not become due yet."""
        with self._lock:
            return self._wheel.count + len(self._due)

    def __iter__(self) -> Iterator[TimerTask]:
        """The tasks that have not become due yet, in no order, as they are now. Kafka's `TimerTaskList.foreach`."""
        with self._lock:
            return iter([task for task in self._tasks if task is not None])

    def add(self, task: TimerTask) -> None:
        """Run a task `task.delay_ms` from now. A task that is already in a timer is moved.

        Raises:
            TypeError: It is not a TimerTask.
            TimerClosed: After `close`.
        """
        if not isinstance(task, TimerTask):
            raise TypeError(f"task: a TimerTask is expected, not {task!r}")
        with self._lock:
            if self._is_closed:
                raise TimerClosed("the timer is closed")
            # The owner may be another timer, which is safe to change here: all timers have the same lock.
            if task.timer_state == WAITING and task.timer_owner is not None:
                task.timer_owner.take_out(task)
            self._put_in(task)
            self._changed()

    def cancel(self, task: TimerTask) -> bool:
        """Like `task.cancel()`, if the task is in this timer. O(1)."""
        with self._lock:
            if task.timer_owner is not self or task.timer_state not in {WAITING, DUE}:
                return False
            if task.timer_state == WAITING:
                self.take_out(task)
            # A task that is due may have been handed over already; the new turn makes that run void.
            task.timer_state = CANCELLED
            task.timer_turn += 1
            return True

    def next_expiration_ms(self) -> int:
        """When to call `advance_clock` next, in milliseconds of this timer's clock; -1: never."""
        with self._lock:
            return self._next_expiration_ms()

    def advance_clock(self, limit: SupportsIndex = SLICE) -> int:
        """Take due tasks out of the wheel and run them, in order of deadline. Unlike Kafka's, it never waits.

        Args:
            limit: Maximum number; if more are due, `next_expiration_ms()` is at or before now afterwards.

        Returns:
            How many were taken out.

        Raises:
            BaseException: Raised by a task, if it is not an Exception; after all have run.
        """
        limit = in_range("limit", limit, 0, DELAY_MS_MAX)
        with self._lock:
            slots = list(islice(self._due, limit))
            # A clock that goes back must not reach the wheel, which asserts that time does not.
            self._wheel.advance(max(self._wheel.now_ms, self._clock.now_ms()), limit - len(slots), slots)
            due = [self._make_due(slot) for slot in slots]
        interrupt: BaseException | None = None
        # Without the lock, because it is common to all timers and a task may take as long as it likes. One that raises
        # must not skip those after it: they have left the wheel already.
        for task, turn in due:
            try:
                self._hand_over(task, turn)
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = chained(error, interrupt)
        if interrupt is not None:
            raise interrupt
        return len(due)

    def close(self) -> list[TimerTask]:
        """Reject tasks from now on. Cancels and returns the tasks that have not run. Idempotent; allowed in a task."""
        with self._lock:
            self._is_closed = True
            left = list(self)
            for task in left:
                self.cancel(task)
            return left

    def after_fork_in_child(self) -> None:
        """Reject every call from now on; the parent runs the tasks."""
        self._lock = RefusedAfterFork("a timer", self._made_in)

    def _changed(self) -> None:
        """Called under the lock when the next deadline may be earlier. For timers with a thread or a loop."""

    def _hand_over(self, task: TimerTask, turn: int) -> None:
        """Run a due task; here immediately, on the calling thread."""
        self._run(task, turn)

    def _run(self, task: TimerTask, turn: int) -> None:
        """Run a task, unless it was cancelled or added again since it became due."""
        with self._lock:
            # Checked here and not when it became due: on an executor it may be cancelled or added again until it runs.
            if task.timer_turn != turn:
                return
            task.timer_state = IDLE
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 - passed to on_error
            self._on_error(task, error)

    def _put_in(self, task: TimerTask) -> None:
        if self._free_slots:
            slot = self._free_slots.pop()
            self._tasks[slot] = task
        else:
            slot = len(self._tasks)
            self._tasks.append(task)
            self._wheel.ensure(slot + 1)
        task.timer_owner, task.timer_slot, task.timer_state = self, slot, WAITING
        task.timer_turn += 1
        # From the end of the current millisecond, or it could run early by a fraction of one.
        deadline_ms = min(self._clock.ceiling_ms() + min(task.delay_ms, DELAY_MS_MAX), DELAY_MS_MAX)
        if task.delay_ms <= 0 or not self._wheel.add(slot, deadline_ms):
            self._due[slot] = None

    def take_out(self, task: TimerTask) -> None:
        """Remove a task that is being added to another timer. Call under the lock."""
        slot = task.timer_slot
        self._wheel.remove(slot)
        self._due.pop(slot, None)
        self._tasks[slot] = None
        self._free_slots.append(slot)
        task.timer_slot = -1

    def _make_due(self, slot: int) -> tuple[TimerTask, int]:
        task = self._tasks[slot]
        assert task is not None, f"slot {slot} fired but holds no task"
        self.take_out(task)
        task.timer_state = DUE
        return task, task.timer_turn

    def _next_expiration_ms(self) -> int:
        return self._wheel.now_ms if self._due else self._wheel.next_expiration_ms()


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
        except BaseException:  # the executor would store it in a future that is never read
            logger.exception("%s: %r raised", self.name, task)
        finally:
            self._inside.task = False


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
