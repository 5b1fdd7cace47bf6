"""Fair scheduling of callers on the event loop, so that one caller's backlog does not delay another caller.

Each unit of work (a call, a stream message, or a slice of either) acquires a turn before it runs. When the loop is
idle, the turn is granted immediately. Otherwise the next turn goes to the caller that has used the least time
(start-time fair queueing; `CallerQueue.start_us` is the virtual start time of its next turn). Within one caller, events
run before registrations, and registrations before inspections. Turns are charged by measured time: from the moment the
work resumes until the next turn begins or the loop iteration ends.
"""

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, NamedTuple

EVENTS, REGISTRATIONS, INSPECTIONS = range(3)
"""Kinds of work, most urgent first: events end waits and release the memory that those hold."""
WORK_NAMES: Final = ("events", "registrations", "inspections")

LOOP_TURN_US_MAX: Final = 1_000
"""Work scheduled after this much time in one loop iteration is deferred to the next iteration."""
TURN_US_MIN: Final = 20
"""The minimum charge for a turn."""

Turn = Callable[[], Awaitable[None]]
"""Acquires a turn for one particular caller; returns immediately while the loop is idle."""


async def next_loop_turn() -> None:
    """A turn for background work that belongs to no caller: runs after everything that is ready now."""
    await asyncio.sleep(0)


class Waiter(NamedTuple):
    future: asyncio.Future[None]
    since_us: int
    is_call: bool


class CallerQueue:
    """The waiting work of one caller: a principal or, without authentication, a connection."""

    def __init__(self, key: str, start_us: int) -> None:
        self.key: Final = key
        self.calls = 0
        """Calls in flight."""
        self.event_calls = 0
        """Those of them whose work is EVENTS."""
        self.start_us = start_us
        self.waiters: Final[tuple[deque[Waiter], ...]] = tuple(deque() for _ in WORK_NAMES)
        """Waiters by kind of work, in order of arrival."""

    @property
    def waiting(self) -> int:
        """Number of waiters, including cancelled ones that have not been removed yet."""
        return sum(map(len, self.waiters))


class FairQueue:
    """Grants the turns of one event loop.

    Args:
        on_waited: Called with the kind of work and the wait in microseconds for each turn that was not granted
            immediately.
        now_us: Monotonic clock, microseconds.
    """

    def __init__(
        self,
        on_waited: Callable[[int, int], None] = lambda _work, _us: None,
        now_us: Callable[[], int] = lambda: time.perf_counter_ns() // 1_000,
    ) -> None:
        self._on_waited: Final = on_waited
        self._now_us: Final = now_us
        self._callers: Final[dict[str, CallerQueue]] = {}
        self.calls = 0
        """Calls in flight, over all callers."""
        self._order: Final[list[tuple[int, int, CallerQueue]]] = []
        """Heap of the callers with waiters: virtual start time, order of arrival, caller."""
        self._arrivals: Final = itertools.count()
        self._virtual_us = 0
        """Virtual start time of the latest turn. An idle caller resumes here, so idle time earns no credit."""
        self._running: CallerQueue | None = None
        """The caller whose turn began last in this loop iteration. The time since then is charged to it."""
        self._running_since_us = 0
        self._first_turn_us: int | None = None
        """Time of the first turn in this loop iteration."""
        self._is_scheduled = False
        self._granted_us = 0
        """Time of the last grant to a waiter, or when the first waiter arrived."""
        self._interval_us = 0.0
        """Moving average of the time between two grants to waiters."""

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept, because asyncio asks the system for the process id each time.
        return asyncio.get_running_loop()

    # Callers.

    def enter(self, key: str) -> CallerQueue:
        """Count an incoming call of the caller `key`. Call `leave` when it has ended."""
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = CallerQueue(key, self._virtual_us)
        caller.calls += 1
        self.calls += 1
        return caller

    def join(self, key: str) -> CallerQueue:
        """Return a queue for the daemon's own work, which takes turns like a caller's but is not counted as a call."""
        return CallerQueue(key, self._virtual_us)

    def leave(self, caller: CallerQueue) -> None:
        caller.calls -= 1
        self.calls -= 1
        assert caller.calls >= 0, f"{caller.calls} calls of {caller.key} are in flight"
        self._forget_if_idle(caller)

    def waiting(self, work: int) -> int:
        return sum(len(caller.waiters[work]) for caller in self._callers.values())

    def expected_wait_ms(self, caller: CallerQueue) -> int:
        """Estimate how long one more unit of work of this caller would wait, in milliseconds, from recent grants."""
        # A round grants each waiting caller one turn, so each of its own waiters needs a whole round.
        return max(1, round((caller.waiting + 1) * max(1, len(self._order)) * self._interval_us / 1_000))

    def next_turn_ms(self, caller: CallerQueue | None = None) -> int | None:
        """Estimate the time until the next turn of any waiter, or of this caller, in milliseconds.

        Returns None if nothing waits, or this caller has no waiters.
        """
        if not self._order or (caller is not None and not caller.waiting):
            return None
        return max(1, round((1 if caller is None else len(self._order)) * self._interval_us / 1_000))

    # Turns.

    async def turn(self, caller: CallerQueue, work: int, *, is_call: bool = False) -> None:
        """Acquire a turn for one kind of work of a caller. `is_call`: `refuse_waiting` may refuse it."""
        now_us = self._now_us()
        if self._first_turn_us is None and not self._order:
            # Nothing waits, and nothing has run in this iteration: as below, without the calls.
            self._virtual_us = max(caller.start_us, self._virtual_us)
            caller.start_us = self._virtual_us + TURN_US_MIN
            self._first_turn_us = self._running_since_us = now_us
            self._running = caller
            self._schedule()
            return
        if self._may_run_now(caller, now_us):
            self._take(caller, now_us)
            self._begin(caller, now_us)
            return
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._order:
            # The time in which nobody waited is not an interval between two grants.
            self._granted_us = now_us
        if not caller.waiting:
            self._enqueue(caller)
        caller.waiters[work].append(Waiter(future, now_us, is_call))
        self._schedule()
        # If the task is cancelled here, nothing has to be undone: `_next_work` drops futures that are done. A turn that
        # was granted at that moment is lost, at the price of the minimum charge.
        await future
        # Not when it was granted: turns of other callers may have run since.
        self._begin(caller, self._now_us())

    def refuse_waiting(self, make_error: Callable[[], Exception]) -> None:
        """End the wait of every call with an error; slices and stream messages keep waiting."""
        for caller in self._callers.values():
            for waiter in itertools.chain(*caller.waiters):
                if waiter.is_call and not waiter.future.done():
                    # It stays in its queue until `_next_work` meets it.
                    waiter.future.set_exception(make_error())

    # Inside.

    def _may_run_now(self, caller: CallerQueue, now_us: int) -> bool:
        # At equal times the caller that waits already is first, and no caller overtakes its own waiting work.
        if self._order and (caller.waiting or max(caller.start_us, self._virtual_us) >= self._order[0][0]):
            return False
        return self._first_turn_us is None or now_us - self._first_turn_us < LOOP_TURN_US_MAX

    def _take(self, caller: CallerQueue, now_us: int) -> None:
        """Give the caller a turn: its next one comes after those of callers that have used less time."""
        # The steps of a turn: its future is set, `_take`; the task runs, `_begin`; it works until its next await; the
        # next `_begin`, or the next iteration of the loop, charges the time (`_charge`).
        self._virtual_us = max(caller.start_us, self._virtual_us)
        # The minimum is charged in advance, so several turns within one iteration do not all start at the same time.
        caller.start_us = self._virtual_us + TURN_US_MIN
        if self._first_turn_us is None:
            self._first_turn_us = now_us
        self._schedule()

    def _begin(self, caller: CallerQueue, now_us: int) -> None:
        """Measure the work of this turn from now on."""
        self._charge(now_us)
        self._running, self._running_since_us = caller, now_us

    def _charge(self, now_us: int) -> None:
        """Add the time of the latest turn to what its caller has used; `_take` has added the minimum."""
        # Each turn is charged its own time. Splitting the time of an iteration evenly made callers with short turns pay
        # for those with long ones.
        if self._running is not None:
            self._running.start_us += max(0, now_us - self._running_since_us - TURN_US_MIN)
            self._running = None

    def _enqueue(self, caller: CallerQueue) -> None:
        # The value in the heap is a copy. `_charge` may raise `start_us` while the caller waits; `_next_work` notices
        # and enqueues it again.
        caller.start_us = max(caller.start_us, self._virtual_us)
        # Arrivals are unique, so the heap never compares callers.
        heapq.heappush(self._order, (caller.start_us, next(self._arrivals), caller))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_next_iteration)

    def _on_next_iteration(self) -> None:
        self._is_scheduled = False
        now_us = self._now_us()
        # Before the grant, which chooses by the time that callers have used.
        self._charge(now_us)
        self._first_turn_us = None
        if self._order and self._grant(now_us):
            self._schedule()

    def _grant(self, now_us: int) -> bool:
        """Grant one turn. Only one, because its cost is unknown until the next iteration charges it.

        Returns whether a turn was granted.
        """
        work = self._next_work()
        if work is None:
            return False
        caller = heapq.heappop(self._order)[2]
        waiter = caller.waiters[work].popleft()
        # The task wakes up before the `_on_next_iteration` that `_take` schedules, so that call charges its work.
        waiter.future.set_result(None)
        self._take(caller, now_us)
        if caller.waiting:
            self._enqueue(caller)
        self._on_waited(work, now_us - waiter.since_us)
        self._interval_us += (now_us - self._granted_us - self._interval_us) / 16
        self._granted_us = now_us
        return True

    def _next_work(self) -> int | None:
        """Return the kind of work to run next, which the first caller in `_order` has; None if nothing waits.

        Removes cancelled waiters on the way.
        """
        while self._order:
            start_us, _, caller = self._order[0]
            for work, waiters in enumerate(caller.waiters):
                while waiters and waiters[0].future.done():
                    waiters.popleft()
                if waiters and start_us >= caller.start_us:
                    return work
            heapq.heappop(self._order)
            if caller.waiting:  # charged for its latest turn since it was enqueued: its position is out of date
                self._enqueue(caller)
            else:
                self._forget_if_idle(caller)
        return None

    def _forget_if_idle(self, caller: CallerQueue) -> None:
        # The reader of a stream may take turns after its call has ended, when a new queue already has the caller's key.
        if not caller.calls and not caller.waiting and self._callers.get(caller.key) is caller:
            del self._callers[caller.key]
