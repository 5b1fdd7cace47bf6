"""`EmbeddedPurgatory`: the engine's generic purgatory under one lock, with a reaper, and effects outside the lock."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import Final, ParamSpec, Self, SupportsIndex, TypeVar

from purgatory.clock import Clock, given_or_system_clock
from purgatory.engine.errors import ReentrantCall
from purgatory.engine.generic.argument_checks import in_range, whole_number
from purgatory.engine.generic.operation import ActionQueue, GenericOperation, OnError, chained, run_effects
from purgatory.engine.generic.purgatory import TIMEOUT_MS_MAX, DelayedOperationPurgatory
from purgatory.threads import ClockThread, RefusedAfterFork, refuse_after_fork

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SLICE: Final = 1_000
"""The lock is released after this many expiries or shutdowns."""


def log_error(operation: GenericOperation, error: Exception) -> None:
    """The default `on_error`: log what a hook raised, with its traceback."""
    logger.error("a hook of %r raised", operation, exc_info=error)


class _ThreadEffects(threading.local):
    """The effects a thread has yet to run: ended operations, and failures of `try_complete` to report."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[GenericOperation, Exception | None]] = deque()
        self.is_running = False


class EmbeddedPurgatory:
    """Pending operations of one process. Close it, or use it as a context manager.

    Every method may be called from any thread, also from effects; from within a `try_complete` only `close` may. After
    a fork the child gets UsedAfterFork from every call; the parent's operations stay the parent's.

    Args:
        name: for threads and messages.
        on_error: `on_error(operation, exception)` is called, outside the lock, with what hooks raise; by default
            that is logged.
        clock: where time comes from; by default the machine's monotonic clock.
        tick_ms: deadlines are rounded up to a multiple of it, in milliseconds.
        wheel_size: buckets of each level of the timing wheel.
        timer_enabled: False: nothing expires.
        reaper_enabled: False: no thread; the program calls `advance_clock` itself.
        pending_max: how many operations may be pending; None: any number.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range; the message names it.

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
        self._actions: Final = ActionQueue()
        self._failures: Final[deque[tuple[GenericOperation, Exception]]] = deque()
        self._effects: Final = _ThreadEffects()
        self._is_close_asked = False
        self._made_in: Final = os.getpid()
        self._is_forked = False
        self._core: Final = DelayedOperationPurgatory(
            self._clock.now_ms(),
            lambda operation, error: self._failures.append((operation, error)),  # reported outside the lock
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            timer_enabled=bool(timer_enabled),
            pending_max=pending_max,
            actions=self._actions,
            claim=self._force_complete,
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def watched(self) -> int:
        """Entries in watch lists: (operation, key) pairs of pending operations."""
        with self._lock:
            return self._core.watched

    @property
    def num_delayed(self) -> int:
        """Operations with a live timer entry."""
        with self._lock:
            return self._core.num_delayed

    @property
    def pending(self) -> int:
        """Registered operations that have not ended."""
        with self._lock:
            return self._core.pending

    @property
    def key_count(self) -> int:
        """Keys that somebody waits on."""
        with self._lock:
            return self._core.key_count

    def is_registered(self, operation: GenericOperation) -> bool:
        """Whether the operation is pending here."""
        with self._lock:
            return self._core.is_registered(_checked(operation))

    def try_complete_else_watch(self, operation: GenericOperation, keys: Iterable[Hashable]) -> bool:
        """Complete an operation now, or watch it until it can be completed or its time runs out.

        When this raises, the operation is not watched, and but for OperationEnded it may be registered again.

        Args:
            operation: a fresh one; each is registered once.
            keys: one or more; `check_and_complete` with any of them tests the operation again.

        Returns:
            True: this call completed it. False: it is watched, or was until somebody else ended it just now.

        Raises:
            ValueError: there are no keys, or the operation is pending already, here or in another purgatory.
            TypeError: an argument is of the wrong type, such as one string for `keys` or a key that can't be hashed.
            OperationEnded: the operation has ended already. Register first, then let others force or cancel it.
            PurgatoryFull: `pending_max` operations are pending.
            PurgatoryClosed: after `close`.
            BaseException: what `try_complete` raised, if it was no Exception (those go to `on_error`).

        """
        return self._call(self._register, _checked(operation), keys)

    def check_and_complete(self, key: Hashable) -> int:
        """Re-test the operations watched on a key, oldest first. Call it after every change that could end one.

        Args:
            key: any hashable; one that nobody waits on costs one lookup.

        Returns:
            How many operations this call completed, not counting those that effects completed in turn.

        Raises:
            BaseException: what a `try_complete` or an effect raised, if no Exception, when all have had their turn.
        """
        return self._call(self._core.check_and_complete, key)

    def cancel(self, operation: GenericOperation) -> bool:
        """End an operation as CANCELLED, registered or not; its `on_complete` runs.

        Returns:
            True: this call ended it; one that was not registered can't be any more. False: it had ended, or it is
            pending in another purgatory.
        """
        return self._call(self._core.cancel, _checked(operation))

    def cancel_for_key(self, key: Hashable) -> list[GenericOperation]:
        """End every operation watched on a key as CANCELLED and return them, oldest first."""
        return self._call(self._core.cancel_for_key, key)

    def force_complete_for_key(self, key: Hashable) -> list[GenericOperation]:
        """End every operation watched on a key as SATISFIED, whatever its condition says; return them, oldest first."""
        return self._call(self._core.force_complete_for_key, key)

    def wait(self, operation: GenericOperation, timeout_ms: SupportsIndex | None = None) -> bool:
        """Block until an operation has ended and its effects have run; `operation.outcome` then says how.

        Args:
            operation: registered or not.
            timeout_ms: milliseconds at most, which leave the operation as it is; None: as long as it takes.

        Returns:
            False: the time ran out.

        Raises:
            ReentrantCall: within a hook, which would wait for the very thread that it holds up.

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
            limit: how many at most; what is left shows as `next_expiration_ms()` at or before now.

        Returns:
            How many expired.
        """
        limit = in_range("limit", limit, 0, TIMEOUT_MS_MAX)
        return self._call(self._advance, limit)

    def next_expiration_ms(self) -> int:
        """When `advance_clock` has something to do, in milliseconds of this purgatory's clock; -1: never."""
        with self._lock:
            return self._core.next_expiration_ms()

    def close(self) -> int:
        """Refuse registrations, end what is pending as SHUTTING_DOWN, and stop the reaper.

        Idempotent, and allowed from within an effect. Waits 5 s at most for an effect that the reaper is running.
        Within a `try_complete`, as from a signal handler that came upon one, registrations are refused at once and the
        rest happens when that has returned.

        Returns:
            How many operations were ended; 0 when called within a `try_complete`.

        Raises:
            BaseException: what an effect raised, if it was no Exception, when all have run.
        """
        with self._lock:
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
            except BaseException as error:  # noqa: BLE001 - raised below, when everybody has been answered
                interrupt = chained(error, interrupt)
            if more == 0:
                break
        if self._reaper is not None:
            self._reaper.stop()
        if interrupt is not None:
            raise interrupt
        return ended

    def after_fork_in_child(self) -> None:
        """Refuse every call from now on; the operations are the parent's to answer, also those that ended."""
        self._lock = RefusedAfterFork(f"purgatory {self.name!r}", self._made_in)
        self._is_forked = True
        self._effects.waiting.clear()

    def _wait_ms(self) -> int:
        """For the reaper: milliseconds until it must look again, 0 for at once, -1 for not until it is woken."""
        with self._lock:
            next_ms = self._core.next_expiration_ms()
            if self._reaper is not None:
                self._reaper.armed_ms = next_ms
            return -1 if next_ms < 0 else max(0, next_ms - self._clock.now_ms())

    def _call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call something of the core's under the lock; afterwards, outside it, the effects of what ended inside."""
        is_outermost = False
        try:
            # `with`, not acquire and release: it leaves a signal no moment between these and the body.
            with self._lock:
                try:
                    return function(*arguments, **keywords)
                finally:
                    # Within a hook this is the same thread's inner call: the outer one takes what ended.
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
        # Rounded up, or it could expire early by a fraction of a millisecond.
        now_ms = max(self._core.now_ms, self._clock.ceiling_ms())
        completed = self._core.try_complete_else_watch(operation, keys, now_ms)
        if self._reaper is not None and not completed:
            self._reaper.wake_before(self._core.next_expiration_ms())
        return completed

    def _advance(self, limit: int) -> int:
        return self._core.advance_clock(max(self._core.now_ms, self._clock.now_ms()), limit)

    def _force_complete(self, operation: GenericOperation) -> bool:
        """What `GenericOperation.force_complete` does for operations registered here."""
        return self._call(self._core.force_complete, operation)

    def _collect_effects(self) -> None:
        """Make the effects of what ended, and the failures, this thread's. The caller holds the lock."""
        if self._is_forked:  # in the middle of a hook: what ended is the parent's to answer
            return
        waiting = self._effects.waiting
        while self._failures:
            waiting.append(self._failures.popleft())
        for operation in self._actions.take_all():
            waiting.append((operation, None))

    def _run_effects(self) -> None:
        """Run this thread's effects, unless it is running them already: then these are behind those.

        One that raises does not cost the others theirs: what is no Exception is raised when all have run.
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
