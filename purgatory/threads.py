"""Threads: for the embedded purgatory and the timer, one that advances time, and no use after a fork; for the daemon,
blocking calls that may hang.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, NoReturn, Protocol, TypeVar
from weakref import WeakSet

__all__ = ["ClockThread", "RefusedAfterFork", "UsedAfterFork", "on_daemon_thread", "refuse_after_fork"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""How long `stop` waits for what the thread is running."""

RETRY_AFTER_S: Final = 0.1
"""How long it rests after a failure of its own."""


class UsedAfterFork(RuntimeError):
    """A forked child used what its parent made. The child has none of the parent's threads; it makes its own."""


class RefusedAfterFork:
    """Takes the place of a lock in a forked child: the real one may be held for ever by a thread that is not there."""

    def __init__(self, what: str, made_in: int) -> None:
        self._what: Final = what
        self._made_in: Final = made_in

    def acquire(self) -> NoReturn:
        """Raise UsedAfterFork."""
        raise UsedAfterFork(
            f"{self._what} was made in process {self._made_in} and does not work in its forked child {os.getpid()}: "
            "make a new one after the fork"
        )

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.acquire()

    release = acquire


class Forkable(Protocol):
    """Something with a lock or a thread, which a forked child must not use."""

    def after_fork_in_child(self) -> None:
        """Refuse every further call."""


_forkables: WeakSet[Forkable] = WeakSet()


def refuse_after_fork(one: Forkable) -> None:
    """Have `one.after_fork_in_child` called in every child that is forked while it lives."""
    _forkables.add(one)


def _after_fork_in_child() -> None:
    for one in list(_forkables):
        one.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class ClockThread(threading.Thread):
    """A daemon thread that advances time, and sleeps until there is something to do, or for good when there is not.

    `advance` does what is due. `wait_ms` returns how long to sleep, 0 for not at all, -1 for until woken; it also sets
    `armed_ms`, the time to wake at (-1: none), which is written and read under the owner's lock. The thread survives
    whatever the two raise; `failures` counts that.
    """

    def __init__(self, name: str, advance: Callable[[], object], wait_ms: Callable[[], int]) -> None:
        super().__init__(name=name, daemon=True)
        self.armed_ms = -1
        self.failures = 0
        self._advance: Final = advance
        self._wait_ms: Final = wait_ms
        self._wake: Final = threading.Event()
        self._is_stopping = False

    def run(self) -> None:
        """Advance, sleep, and again, until stopped."""
        while not self._is_stopping:
            # Cleared before looking: what is added from here on sets it again, so no wake-up is lost.
            self._wake.clear()
            try:
                self._advance()
                wait_ms = self._wait_ms()
            except BaseException:
                self.failures += 1
                logger.exception("%s failed and goes on", self.name)
                self._wake.wait(RETRY_AFTER_S)
                continue
            if wait_ms != 0 and not self._is_stopping:
                self._wake.wait(None if wait_ms < 0 else min(wait_ms / 1000, threading.TIMEOUT_MAX))

    def wake_before(self, next_ms: int) -> None:
        """Wake it if it sleeps past `next_ms` (-1: nothing to wake for). The caller holds the owner's lock."""
        if next_ms >= 0 and (self.armed_ms < 0 or next_ms < self.armed_ms):
            self._wake.set()

    def stop(self) -> None:
        """End it, and wait STOP_TIMEOUT_S at most for what it is running, unless this is itself."""
        self._is_stopping = True
        self._wake.set()
        if threading.current_thread() is not self:
            self.join(STOP_TIMEOUT_S)


BLOCKING_CALLS_MAX: Final = 64
_blocking_calls: Final[set[threading.Thread]] = set()


async def on_daemon_thread(call: Callable[[], T]) -> T:
    """Run a blocking call that may hang. Once this is cancelled nothing waits for it: the end of the process does not
    wait for daemon threads, but does for those of an executor.

    Raises OSError while `BLOCKING_CALLS_MAX` others run, and whatever the call raises.
    """
    _blocking_calls.difference_update([thread for thread in _blocking_calls if not thread.is_alive()])
    if len(_blocking_calls) >= BLOCKING_CALLS_MAX:
        raise OSError(f"{BLOCKING_CALLS_MAX} other blocking calls are running; try again later")
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # from here on it cannot be cancelled, only left alone

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            result.set_exception(error)

    thread = threading.Thread(target=run, name="blocking call", daemon=True)
    thread.start()
    _blocking_calls.add(thread)
    return await asyncio.wrap_future(result)
