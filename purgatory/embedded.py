"""The purgatory inside a threaded program, with no daemon: one lock, one `ExpiredOperationReaper` thread.

`try_complete` runs under the lock, so it is never concurrent with anything. The effects of an ended operation,
`on_complete` and `on_expiration`, run outside it, on the thread whose call ended the operation (the reaper, if the
timer did). So while one thread is inside an `on_complete`, another's check returns at once, and effects may call back
in. Effects that are caused by effects are queued behind them on the same thread: no recursion.

Do not hold a lock that a `try_complete` takes while calling `check_and_complete`: change your state, release it, then
check.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from purgatory.clock import Clock, SystemClock
from purgatory.engine.generic.operation import ActionQueue, DelayedOperation, OnError, run_effects
from purgatory.engine.generic.purgatory import DelayedOperationPurgatory

__all__ = ["EmbeddedPurgatory", "ExpiredOperationReaper"]

logger = logging.getLogger(__name__)

SLICE: Final = 1_000
"""The lock is let go after so many expiries or shutdowns."""

REAPER_STOP_TIMEOUT_S: Final = 5.0
"""How long `close` waits for an effect that the reaper is running."""

RETRY_AFTER_S: Final = 0.1
"""How long the reaper rests after a failure that was nobody's operation's."""


class _ThreadEffects(threading.local):
    """The effects a thread has yet to run: ended operations, and failures of `try_complete` to report."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[DelayedOperation, Exception | None]] = deque()
        self.is_running = False


class EmbeddedPurgatory:
    """Pending operations of one process; every method may be called from any thread.

    `on_error(operation, exception)` is told, outside the lock, of what hooks raise. Without the reaper
    (`reaper_enabled=False`) the program calls `advance_clock` itself. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        name: str,
        on_error: OnError,
        *,
        clock: Clock | None = None,
        tick_ms: int = 1,
        wheel_size: int = 20,
        timer_enabled: bool = True,
        reaper_enabled: bool = True,
    ) -> None:
        self.name: Final = name
        self._on_error: Final = on_error
        self._clock: Final[Clock] = SystemClock() if clock is None else clock
        self._lock: Final = threading.RLock()
        self._actions: Final = ActionQueue()
        self._failures: list[tuple[DelayedOperation, Exception]] = []
        self._effects: Final = _ThreadEffects()
        self._core: Final = DelayedOperationPurgatory(
            self._clock.now_ms(),
            self._keep_failure,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            timer_enabled=timer_enabled,
            actions=self._actions,
            claim=self._force_complete,
        )
        self._reaper: Final = ExpiredOperationReaper(self) if reaper_enabled and timer_enabled else None
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

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> bool:
        """Complete an operation now (True), or watch it on `keys` until it can be or its time runs out (False).

        Raises ValueError for no keys or an operation that is pending already, PurgatoryClosed after `close`.
        """
        with self._section() as core:
            completed = core.try_complete_else_watch(operation, keys, self._clock.now_ms())
            if self._reaper is not None:
                self._reaper.wake_before(core.next_expiration_ms())
            return completed

    def check_and_complete(self, key: Hashable) -> int:
        """Re-test the operations watched on a key; return how many this call completed."""
        with self._section() as core:
            return core.check_and_complete(key)

    def cancel(self, operation: DelayedOperation) -> bool:
        """End a pending operation as CANCELLED. False: it had ended, or was never watched here."""
        with self._section() as core:
            return core.cancel(operation)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """End every operation watched on a key as CANCELLED and return them."""
        with self._section() as core:
            return core.cancel_for_key(key)

    def advance_clock(self, limit: int = SLICE) -> int:
        """Expire up to `limit` operations that are due; return how many. The reaper does this by itself."""
        with self._section() as core:
            return core.advance_clock(self._clock.now_ms(), limit)

    def next_expiration_ms(self) -> int:
        """When `advance_clock` has something to do, on this purgatory's clock; -1: never."""
        with self._lock:
            return self._core.next_expiration_ms()

    def close(self) -> int:
        """Refuse registrations, stop the reaper, end what is pending as SHUTTING_DOWN; return how many that were.

        Idempotent, and allowed from within an effect. Waits REAPER_STOP_TIMEOUT_S at most for an effect that the reaper
        is running.
        """
        ended = self._shut_down_slice()
        if self._reaper is not None:
            self._reaper.stop()
        while True:
            more = self._shut_down_slice()
            ended += more
            if more == 0:
                return ended

    def wait_ms(self) -> int:
        """For the reaper: milliseconds until it must look again, 0 for at once, -1 for not until it is woken."""
        with self._lock:
            next_ms = self._core.next_expiration_ms()
            if self._reaper is not None:
                self._reaper.armed_ms = next_ms
            return -1 if next_ms < 0 else max(0, next_ms - self._clock.now_ms())

    @contextmanager
    def _section(self) -> Iterator[DelayedOperationPurgatory]:
        """The core under the lock; afterwards, outside it, the effects of what ended inside."""
        effects: list[tuple[DelayedOperation, Exception | None]] = []
        try:
            with self._lock:
                try:
                    yield self._core
                finally:
                    # Inside a try_complete this is the same thread's outer section, which takes them itself.
                    if not self._core.is_evaluating:
                        effects = self._take_effects()
        finally:
            self._run(effects)

    def _force_complete(self, operation: DelayedOperation) -> bool:
        """What `DelayedOperation.force_complete` does for operations registered here."""
        with self._section() as core:
            return core.force_complete(operation)

    def _shut_down_slice(self) -> int:
        with self._section() as core:
            return core.shut_down(SLICE)

    def _keep_failure(self, operation: DelayedOperation, error: Exception) -> None:
        """Called by the core under the lock: `on_error` itself must run outside."""
        self._failures.append((operation, error))

    def _take_effects(self) -> list[tuple[DelayedOperation, Exception | None]]:
        failures = self._failures
        self._failures = []
        ended = [(operation, None) for operation in self._actions.take_all()]
        return [*failures, *ended]

    def _run(self, effects: list[tuple[DelayedOperation, Exception | None]]) -> None:
        """Run effects on this thread, behind those it is running already."""
        mine = self._effects
        mine.waiting.extend(effects)
        effects.clear()
        if mine.is_running:
            return
        mine.is_running = True
        try:
            while mine.waiting:
                operation, failure = mine.waiting.popleft()
                if failure is None:
                    run_effects(operation, self._on_error)
                else:
                    self._on_error(operation, failure)
        finally:
            mine.is_running = False
            if mine.waiting:
                self._hand_back(mine.waiting)

    def _hand_back(self, waiting: deque[tuple[DelayedOperation, Exception | None]]) -> None:
        """Leave what this thread, torn out of its effects, can't run to whoever comes next, at latest the reaper."""
        with self._lock:
            for operation, failure in waiting:
                if failure is None:
                    self._actions.add(operation)
                else:
                    self._failures.append((operation, failure))
        waiting.clear()
        if self._reaper is not None:
            self._reaper.wake()


class ExpiredOperationReaper(threading.Thread):
    """The only thread that advances time: sleeps until the next expiration, or for good when there is none.

    `armed_ms` is the time it means to wake at (-1: it does not), written and read under the purgatory's lock. It
    survives whatever an effect or the clock raises; `failures` counts that.
    """

    def __init__(self, purgatory: EmbeddedPurgatory) -> None:
        super().__init__(name=f"ExpirationReaper-{purgatory.name}", daemon=True)
        self.armed_ms = -1
        self.failures = 0
        self._purgatory: Final = purgatory
        self._wake: Final = threading.Event()
        self._is_stopping = False

    def run(self) -> None:
        """Advance, sleep, and again, until stopped."""
        while not self._is_stopping:
            # Cleared before looking: what is registered from here on sets it again, so no wake-up is lost.
            self._wake.clear()
            try:
                self._purgatory.advance_clock()
                wait_ms = self._purgatory.wait_ms()
            except BaseException:
                self.failures += 1
                logger.exception("%s failed and goes on", self.name)
                self._wake.wait(RETRY_AFTER_S)
                continue
            if wait_ms != 0 and not self._is_stopping:
                self._wake.wait(None if wait_ms < 0 else min(wait_ms / 1000, threading.TIMEOUT_MAX))

    def wake_before(self, next_ms: int) -> None:
        """Wake it if it sleeps past `next_ms` (-1: nothing to wake for). The caller holds the purgatory's lock."""
        if next_ms >= 0 and (self.armed_ms < 0 or next_ms < self.armed_ms):
            self.wake()

    def wake(self) -> None:
        """Make it look now."""
        self._wake.set()

    def stop(self) -> None:
        """End it, and wait for it unless this is itself."""
        self._is_stopping = True
        self._wake.set()
        if threading.current_thread() is not self:
            self.join(REAPER_STOP_TIMEOUT_S)
