"""`EmbeddedPurgatory`: the generic purgatory under one lock, with a reaper thread, and effects outside the lock."""

import asyncio
import logging
import os
import threading
from abc import ABCMeta
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, Final, ParamSpec, Self, SupportsIndex, TypeVar

from purgatory.clock import Clock, given_or_system_clock
from purgatory.engine.errors import ReentrantCall
from purgatory.engine.generic.argument_checks import in_range, whole_number
from purgatory.engine.generic.operation import GenericOperation, OnError, chained, run_effects
from purgatory.engine.generic.purgatory import TIMEOUT_MS_MAX, DelayedOperationPurgatory
from purgatory.threads import ClockThread, RefusedAfterFork, refuse_after_fork

logger = logging.getLogger(__name__)


class OperationType(ABCMeta):
    """Metaclass of operations: rejects subclasses that are also asyncio futures, with the same error in both builds.

    In the compiled build, Python itself would raise "multiple bases have instance lay-out conflict". It derives from
    ABCMeta so that operations may have abstract base classes.
    """

    def __new__(  # noqa: D102 - see the class
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **keywords: object
    ) -> "OperationType":
        if any(issubclass(base, asyncio.Future) for base in bases):
            raise TypeError(
                f"class {name}: an operation can't be an asyncio.Future as well, which only its loop's own thread may "
                "complete; await the operation itself, or hold the future as an attribute"
            )
        return super().__new__(cls, name, bases, namespace, **keywords)


class DelayedOperation(GenericOperation, metaclass=OperationType):
    """One waiting request: subclass it and define `try_complete` and `on_complete`.

    `await operation` returns its outcome once its effects have run, on any event loop and from any number of tasks.
    Cancelling such a task leaves the operation pending; call `EmbeddedPurgatory.cancel` if no other task needs it.

    Args:
        timeout_ms: Milliseconds from registration to expiry, never less. 0 or less: immediately; None: it never
            expires.

    Raises:
        TypeError: `timeout_ms` is not an integer.
    """

    def __await__(self) -> Generator[Any, None, int]:
        return _outcome(self).__await__()


async def _outcome(operation: GenericOperation) -> int:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()

    def answer() -> None:
        if not answered.done():
            answered.set_result(None)

    def wake_loop() -> None:
        # If the loop has been closed, no task is left that could be waiting for this.
        if not loop.is_closed():
            loop.call_soon_threadsafe(answer)

    operation.purgatory_listen(wake_loop)
    try:
        await answered
    finally:
        operation.purgatory_forget(wake_loop)
    return operation.outcome


P = ParamSpec("P")
T = TypeVar("T")

SLICE: Final = 1_000
"""The lock is released after this many expiries or shutdowns."""


def log_error(operation: GenericOperation, error: Exception) -> None:
    """The default `on_error`: log the exception of a hook, with its traceback."""
    logger.error("a hook of %r raised", operation, exc_info=error)


class _ThreadEffects(threading.local):
    """Effects that a thread has yet to run: ended operations, and failures of `try_complete` to report."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[GenericOperation, Exception | None]] = deque()
        self.is_running = False


class EmbeddedPurgatory:
    """Pending operations of one process. Close it, or use it as a context manager.

    Every method may be called from any thread, including from effects. Within a `try_complete`, only `close` may be
    called. After a fork, every call in the child raises UsedAfterFork; the operations belong to the parent.

    Args:
        name: For threads and messages.
        on_error: Called as `on_error(operation, exception)`, outside the lock, for exceptions of hooks. By default they
            are logged.
        clock: The source of time; by default the machine's monotonic clock.
        tick_ms: Deadlines are rounded up to a multiple of this, in milliseconds.
        wheel_size: Buckets of each level of the timing wheel.
        timer_enabled: If False, nothing expires.
        reaper_enabled: If False, there is no reaper thread; the program calls `advance_clock` itself.
        pending_max: Maximum number of pending operations; None means no limit.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range; the message names it.
    """

    def __init__(
        self,
        name: str,
        on_error: OnError | None = None,
        *,
        clock: Clock | None = None,
        tick_ms: SupportsIndex = 1,
        wheel_size: SupportsIndex = 20,
        timer_enabled: bool = True,
        reaper_enabled: bool = True,
        pending_max: SupportsIndex | None = None,
    ) -> None:
        if getattr(clock, "is_manual", False) and timer_enabled and reaper_enabled:
            raise ValueError(
                "clock: a manual clock does not wake the reaper, which sleeps by real time; pass reaper_enabled=False "
                "and call advance_clock() after each jump"
            )
        if on_error is not None and not callable(on_error):
            raise TypeError(f"on_error: a function of an operation and an exception is expected, not {on_error!r}")
        self.name: Final = name
        self._on_error: Final[OnError] = log_error if on_error is None else on_error
        self._clock: Final = given_or_system_clock(clock)
        self._lock: threading.RLock | RefusedAfterFork = threading.RLock()
        self._failures: Final[deque[tuple[GenericOperation, Exception]]] = deque()
        self._effects: Final = _ThreadEffects()
        self._is_close_asked = False
        self._made_in: Final = os.getpid()
        self._is_forked = False
        self._core: Final = DelayedOperationPurgatory(
            self._clock.now_ms(),
            lambda operation, error: self._failures.append((operation, error)),  # reported outside the lock
            self._force_complete,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            timer_enabled=bool(timer_enabled),
            pending_max=pending_max,
        )
        self._reaper: Final = (
            ClockThread(f"ExpirationReaper-{name}", self.advance_clock, self._wait_ms)
            if reaper_enabled and timer_enabled
            else None
        )
        refuse_after_fork(self)
        if self._reaper is not None:
            self._reaper.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def watched(self) -> int:
        """Entries in watch lists: (operation, key) pairs of pending operations."""
        with self._lock:
            return self._core.watched

    @property
    def num_delayed(self) -> int:
        """Operations with a timer entry: all pending operations that can expire."""
        with self._lock:
            return self._core.num_delayed

    @property
    def pending(self) -> int:
        """Registered operations that have not ended."""
        with self._lock:
            return self._core.pending

    @property
    def key_count(self) -> int:
        """Keys with at least one pending operation."""
        with self._lock:
            return self._core.key_count

    def is_registered(self, operation: GenericOperation) -> bool:
        """Whether the operation is pending here."""
        with self._lock:
            return self._core.is_registered(_checked(operation))

    def try_complete_else_watch(self, operation: GenericOperation, keys: Iterable[Hashable]) -> bool:
        """Complete an operation now, or watch it until it can be completed or times out.

        If this raises, the operation is not watched, and except after OperationEnded it may be registered again.

        Args:
            operation: A new operation; each is registered once.
            keys: One or more keys; `check_and_complete` with any of them evaluates the operation again.

        Returns:
            True if this call completed it. False if it is watched, or was ended by another thread during this call.

        Raises:
            ValueError: `keys` is empty, or the operation is already pending, in this or another purgatory.
            TypeError: An argument has the wrong type, such as a single string for `keys` or an unhashable key.
            OperationEnded: The operation has already ended. Register it before other threads may force or cancel it.
            PurgatoryFull: `pending_max` operations are pending.
            PurgatoryClosed: After `close`.
            BaseException: Raised by `try_complete`, if it is not an Exception (those go to `on_error`).
        """
        return self._call(self._register, _checked(operation), keys)

    def check_and_complete(self, key: Hashable) -> int:
        """Evaluate the operations watched on a key, oldest first. Call it after every change that could complete one.

        Args:
            key: Any hashable; a key without operations costs one lookup.

        Returns:
            How many operations this call completed, not counting those completed in turn by effects.

        Raises:
            BaseException: Raised by a `try_complete` or an effect, if it is not an Exception; after all have run.
        """
        return self._call(self._core.check_and_complete, key)

    def cancel(self, operation: GenericOperation) -> bool:
        """End an operation as CANCELLED, registered or not; its `on_complete` runs.

        Returns:
            True if this call ended it; an unregistered operation can then no longer be registered. False if it had
            ended, or is pending in another purgatory.
        """
        return self._call(self._core.cancel, _checked(operation))

    def cancel_for_key(self, key: Hashable) -> list[GenericOperation]:
        """End all operations watched on a key as CANCELLED and return them, oldest first."""
        return self._call(self._core.cancel_for_key, key)

    def force_complete_for_key(self, key: Hashable) -> list[GenericOperation]:
        """End all operations watched on a key as SATISFIED, whatever their conditions; return them, oldest first."""
        return self._call(self._core.force_complete_for_key, key)

    def wait(self, operation: GenericOperation, timeout_ms: SupportsIndex | None = None) -> bool:
        """Block until an operation has ended and its effects have run; see `operation.outcome`.

        Args:
            operation: Registered or not.
            timeout_ms: Maximum time in milliseconds; it does not affect the operation. None: no limit.

        Returns:
            False if the time ran out.

        Raises:
            ReentrantCall: Called within a hook, which would wait for its own thread.
        """
        timeout_s = None
        if timeout_ms is not None:
            timeout_ms = min(max(0, whole_number("timeout_ms", timeout_ms)), TIMEOUT_MS_MAX)
            timeout_s = min(timeout_ms / 1000, threading.TIMEOUT_MAX)
        with self._lock:
            if self._core.is_busy or self._effects.is_running:
                raise ReentrantCall("wait was called within a hook, and would hold up the thread that it waits for")
        answered = threading.Event()
        _checked(operation).purgatory_listen(answered.set)
        try:
            return answered.wait(timeout_s)
        finally:
            operation.purgatory_forget(answered.set)

    def advance_clock(self, limit: SupportsIndex = SLICE) -> int:
        """Expire operations that are due, in order of deadline. The reaper does this by itself.

        Args:
            limit: Maximum number; if more are due, `next_expiration_ms()` is at or before now afterwards.

        Returns:
            How many expired.
        """
        limit = in_range("limit", limit, 0, TIMEOUT_MS_MAX)
        return self._call(self._advance, limit)

    def next_expiration_ms(self) -> int:
        """When to call `advance_clock` next, in milliseconds of this purgatory's clock; -1: never."""
        with self._lock:
            return self._core.next_expiration_ms()

    def close(self) -> int:
        """Reject registrations, end all pending operations as SHUTTING_DOWN, and stop the reaper.

        Idempotent, and allowed within an effect. Waits at most 5 s for an effect that the reaper is running. Within a
        `try_complete`, for example from a signal handler that interrupted it, registrations are rejected immediately
        and the rest is done when `try_complete` has returned.

        Returns:
            How many operations were ended; 0 when called within a `try_complete`.

        Raises:
            BaseException: Raised by an effect, if it is not an Exception; after all have run.
        """
        with self._lock:
            # The lock is held, so a busy core means that this thread is within a hook: `_call` closes when that has
            # returned.
            self._core.is_closed = True
            self._is_close_asked = self._core.is_busy
            if self._core.is_busy:
                return 0
        ended = more = 0
        interrupt: BaseException | None = None
        while True:
            with self._lock:
                more = self._core.shut_down(SLICE)
                self._collect_effects()
            ended += more
            try:
                self._run_effects()
            except BaseException as error:  # noqa: BLE001 - raised below, after all operations have been answered
                interrupt = chained(error, interrupt)
            if more == 0:
                break
        if self._reaper is not None:
            self._reaper.stop()
        if interrupt is not None:
            raise interrupt
        return ended

    def after_fork_in_child(self) -> None:
        """Reject every call from now on. The parent answers the operations, including those that have ended."""
        self._lock = RefusedAfterFork(f"purgatory {self.name!r}", self._made_in)
        self._is_forked = True
        self._effects.waiting.clear()

    def _wait_ms(self) -> int:
        """Milliseconds until the reaper must run again; 0: immediately; -1: not until it is woken."""
        with self._lock:
            next_ms = self._core.next_expiration_ms()
            if self._reaper is not None:
                self._reaper.armed_ms = next_ms
            return -1 if next_ms < 0 else max(0, next_ms - self._clock.now_ms())

    def _call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a method of the core under the lock; then, outside it, run the effects of the operations that ended."""
        is_outermost = False
        try:
            # `with` instead of acquire and release: it leaves no gap in which a signal could be handled before the
            # body.
            with self._lock:
                try:
                    return function(*arguments, **keywords)
                finally:
                    # Within a hook this is a nested call of the same thread: the outer one collects the ended
                    # operations.
                    is_outermost = not self._core.is_busy
                    if is_outermost:
                        self._collect_effects()
        finally:
            if is_outermost:
                try:
                    self._run_effects()
                finally:
                    if self._is_close_asked:
                        self.close()

    def _register(self, operation: GenericOperation, keys: Iterable[Hashable]) -> bool:
        # Rounded up, or an operation could expire early by a fraction of a millisecond.
        now_ms = max(self._core.now_ms, self._clock.ceiling_ms())
        completed = self._core.try_complete_else_watch(operation, keys, now_ms)
        if self._reaper is not None and not completed:
            self._reaper.wake_before(self._core.next_expiration_ms())
        return completed

    def _advance(self, limit: int) -> int:
        # A registration rounds up, so the core's clock may be ahead of the machine's by less than a millisecond.
        return self._core.advance_clock(max(self._core.now_ms, self._clock.now_ms()), limit)

    def _force_complete(self, operation: GenericOperation) -> bool:
        """Implements `GenericOperation.force_complete` for operations registered here."""
        return self._call(self._core.force_complete, operation)

    def _collect_effects(self) -> None:
        """Move ended operations and failures of `try_complete` to this thread's queue. The caller holds the lock."""
        if self._is_forked:  # forked within a hook: the parent answers the ended operations
            return
        waiting = self._effects.waiting
        while self._failures:
            waiting.append(self._failures.popleft())
        while self._core.ended:
            waiting.append((self._core.ended.popleft(), None))

    def _run_effects(self) -> None:
        """Run this thread's effects, unless it is already running them: then these are queued behind those.

        If an effect raises, the others still run; a BaseException that is not an Exception is raised after all have
        run.
        """
        mine = self._effects
        if mine.is_running or not mine.waiting:
            return
        mine.is_running = True
        interrupt: BaseException | None = None
        try:
            while mine.waiting:
                operation, failure = mine.waiting.popleft()
                try:
                    if failure is None:
                        run_effects(operation, self._on_error)
                    else:
                        self._on_error(operation, failure)
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = chained(error, interrupt)
        finally:
            mine.is_running = False
        if interrupt is not None:
            raise interrupt


def _checked(operation: GenericOperation) -> GenericOperation:
    if not isinstance(operation, GenericOperation):
        raise TypeError(f"operation: a DelayedOperation is expected, not {operation!r}")
    return operation
