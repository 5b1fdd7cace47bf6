"""Threads: one that advances time, for the embedded purgatory and the timer; protection against use after a fork; and,
for the daemon, blocking calls that may hang, and a thread that must not wait for a core.
"""

import asyncio
import ctypes
import logging
import os
import platform
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, NoReturn, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""How long `stop` waits for the call that the thread is running, seconds."""

RETRY_AFTER_S: Final = 0.1
"""Pause after a failure of the thread itself, seconds."""


class UsedAfterFork(RuntimeError):
    """A forked child used an object of its parent. The parent's threads do not exist there; create a new object."""


class RefusedAfterFork:
    """Replaces a lock in a forked child: the real one may be held for ever by a thread that does not exist there."""

    def __init__(self, what: str, made_in: int) -> None:
        self._what: Final = what
        self._made_in: Final = made_in

    def acquire(self) -> NoReturn:
        """Raise UsedAfterFork."""
        raise UsedAfterFork(
            f"{self._what} was created in process {self._made_in} and does not work in its forked child {os.getpid()}: "
            "create a new one after the fork"
        )

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.acquire()

    release = acquire


class Forkable(Protocol):
    """An object with a lock or a thread, which a forked child must not use."""

    def after_fork_in_child(self) -> None:
        """Refuse every further call."""


_forkables: WeakSet[Forkable] = WeakSet()


def refuse_after_fork(one: Forkable) -> None:
    """Have `one.after_fork_in_child` called in every child that is forked during the life of `one`."""
    _forkables.add(one)


def _after_fork_in_child() -> None:
    for one in list(_forkables):
        one.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class ClockThread(threading.Thread):
    """A daemon thread that advances time, and sleeps until the next work is due, or until woken if there is none.

    `advance` does the work that is due. `wait_ms` returns how long to sleep, 0 for not at all, -1 for until woken; it
    also sets `armed_ms`, the time to wake at (-1: none), which is written and read under the owner's lock. The thread
    survives any exception of the two; `failures` counts them.
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
        """Advance and sleep, until stopped."""
        while not self._is_stopping:
            # Cleared before looking: work added from here on sets it again, so no wake-up is lost.
            self._wake.clear()
            try:
                self._advance()
                wait_ms = self._wait_ms()
            except BaseException:
                self.failures += 1
                logger.exception("%s failed; it continues", self.name)
                self._wake.wait(RETRY_AFTER_S)
                continue
            if wait_ms != 0 and not self._is_stopping:
                self._wake.wait(None if wait_ms < 0 else min(wait_ms / 1000, threading.TIMEOUT_MAX))

    def wake_before(self, next_ms: int) -> None:
        """Wake it if it sleeps past `next_ms` (-1: nothing to wake for). The caller holds the owner's lock."""
        if next_ms >= 0 and (self.armed_ms < 0 or next_ms < self.armed_ms):
            self._wake.set()

    def stop(self) -> None:
        """End the thread, and wait at most STOP_TIMEOUT_S for its current call, unless called on the thread itself."""
        self._is_stopping = True
        self._wake.set()
        if threading.current_thread() is not self:
            self.join(STOP_TIMEOUT_S)


SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Number of the system call by machine; the C library has it from glibc 2.41 on only."""
KEEP_POLICY: Final = 8
SLICE_NS: Final = 100_000
"""The shortest time slice that Linux accepts."""


def run_promptly() -> None:
    """Let the calling thread run soon after it is woken, although every core is in use. It gets no larger share.

    Linux from 6.12 on lets a thread with a short time slice interrupt those with longer ones; other systems ignore it.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if number is not None and os.uname().sysname == "Linux":
        nice = os.getpriority(os.PRIO_PROCESS, 0)  # must be given, and stays as it is
        attributes = struct.pack("=IIQiIQQQ", 48, 0, KEEP_POLICY, nice, 0, SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # if it is refused, nothing has changed


BLOCKING_CALLS_MAX: Final = 64
_blocking_calls: Final[set[threading.Thread]] = set()


async def on_daemon_thread(call: Callable[[], T]) -> T:
    """Run a blocking call that may hang.

    If the caller is cancelled, the call is abandoned. The exit of the process does not wait for it: it waits for the
    threads of an executor, but not for daemon threads.

    Raises OSError while `BLOCKING_CALLS_MAX` others run, and any error of the call.
    """
    _blocking_calls.difference_update([thread for thread in _blocking_calls if not thread.is_alive()])
    if len(_blocking_calls) >= BLOCKING_CALLS_MAX:
        raise OSError(f"{BLOCKING_CALLS_MAX} other blocking calls are running; try again later")
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # from here on it cannot be cancelled, only abandoned

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again in the caller
            result.set_exception(error)

    thread = threading.Thread(target=run, name="blocking call", daemon=True)
    thread.start()
    _blocking_calls.add(thread)
    return await asyncio.wrap_future(result)
