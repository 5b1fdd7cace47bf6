"""Whose turn it is on the event loop: callers take turns, so that none of them waits for all that another has sent.

Every piece of work (a call, a message of a stream, a slice of either) takes a turn before it runs. While there is
little to do a turn comes at once, without waiting. Otherwise it goes to the caller whose turns have taken the least
time (start-time fair queueing: `CallerTurns.start_us` is the virtual time at which its next turn begins), and among one
caller's work to events before registrations before inspections. The time of a turn is measured: what a turn of the
loop took is charged to those who had a turn in it.

Calls that gRPC's core holds, not accepted yet, stand in one line, whoever made them, and the loop accepts one of them
every turn or two. Whoever keeps many in flight makes a new one for each that ends. So, unless that caller is alone, its
calls are ended no faster than calls come in: the rest of them wait here, where others pass them, not in that line.
"""

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

EVENTS, REGISTRATIONS, INSPECTIONS = range(3)
"""Sorts of work, the most urgent first: events let waits end, and with them what they hold."""
WORK_NAMES: Final = ("events", "registrations", "inspections")

LOOP_TURN_US_MAX: Final = 1_000
"""Once a turn of the loop has taken so long, further work waits for the next one."""
RECENT_US: Final = 10_000
RECENT_CALLS_MAX: Final = 4
"""A caller that makes more calls than this in `RECENT_US` keeps many in flight."""
QUIET_MS: Final = 1
QUIET_TURNS: Final = 8
"""When no call has come in for so long, and in so many turns of the loop after that, none waits to be accepted."""
ALONE_US: Final = 1_000_000
"""A caller is alone when nobody else has had a turn for so long, in a new call or on a stream."""
ENDING_MAX: Final = 32
"""So many calls are then ended, and after that one for every four that come in, until it is quiet again."""
TURNS_PER_REFUSAL: Final = 8
"""While somebody waits for a turn, one refused call is answered after so many turns."""
TURN_US_MIN: Final = 20
"""The least that is charged for a turn."""


Turn = Callable[[], Awaitable[None]]
"""Returns when it is the turn of whoever has it: at once while there is little to do."""


async def next_loop_turn() -> None:
    """A turn for whoever is no caller: after everything else that is ready to run."""
    await asyncio.sleep(0)


class Place(NamedTuple):
    """Where a piece of work waits for its turn."""

    future: asyncio.Future[None]
    since_us: int
    is_call: bool


class CallerTurns:
    """Who takes turns: a principal, or a connection where nobody is asked who it is."""

    def __init__(self, key: str, start_us: int) -> None:
        self.key: Final = key
        self.calls = 0
        """In flight."""
        self.recent_calls = 0
        """In the present stretch of `RECENT_US`."""
        self.stretch = -1
        self.start_us = start_us
        self.places: Final[tuple[deque[Place], ...]] = tuple(deque() for _ in WORK_NAMES)

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for their turn."""
        return sum(len(places) for places in self.places)


class FairQueue:
    """The turns of one event loop. `on_waited` is told of each turn that did not come at once: of which work, and after
    how many microseconds.
    """

    def __init__(
        self,
        on_waited: Callable[[int, int], None] = lambda _work, _us: None,
        now_us: Callable[[], int] = lambda: time.perf_counter_ns() // 1_000,
    ) -> None:
        self._on_waited: Final = on_waited
        self._now_us: Final = now_us
        self._callers: Final[dict[str, CallerTurns]] = {}
        self.calls = 0
        """In flight."""
        self._order: Final[list[tuple[int, int, CallerTurns]]] = []
        """A heap of the callers that wait, by start."""
        self._arrivals: Final = itertools.count()
        self._virtual_us = 0
        """Where the latest turn started. A caller that was idle starts here: it saves nothing up."""
        self._had_turn: Final[list[CallerTurns]] = []
        """In this turn of the loop."""
        self._began_us = 0
        """When the first of those had its turn."""
        self._is_scheduled = False
        self._accepted_us = 0
        """When the latest call came in."""
        self._latest: CallerTurns | None = None
        """Who came last, with a call or a message of a stream."""
        self._mixed_us = -ALONE_US
        """When somebody came after somebody else."""
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._may_end = 0.0
        """So many calls may be ended now, served or refused."""
        self._granted_us = 0
        """When somebody who waited had a turn last, or the first began to wait."""
        self._interval_us = 0.0
        """The mean time between two turns of those who wait, lately."""
        self._refused: Final[deque[asyncio.Future[None]]] = deque()
        self._turns_since_refusal = 0

    # Callers.

    def enter(self, key: str) -> CallerTurns:
        """Counts a call that has come in. `leave` once it has ended."""
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = CallerTurns(key, self._virtual_us)
        self._accepted_us = self._now_us()
        self._may_end = min(ENDING_MAX, self._may_end + 0.25)
        self._note(caller)
        stretch = self._accepted_us // RECENT_US
        if caller.stretch != stretch:
            caller.stretch, caller.recent_calls = stretch, 0
        caller.recent_calls += 1
        caller.calls += 1
        self.calls += 1
        if self._order or self._refused:
            self._schedule()
        return caller

    def join(self, key: str) -> CallerTurns:
        """For work of the daemon's own, which takes its turns as a caller does but is no call."""
        return CallerTurns(key, self._virtual_us)

    def leave(self, caller: CallerTurns) -> None:
        caller.calls -= 1
        self.calls -= 1
        assert caller.calls >= 0, f"{caller.calls} calls of {caller.key} are in flight"
        self._forget_if_idle(caller)

    def waiting(self, work: int) -> int:
        """Pieces of such work that wait for their turn."""
        return sum(len(caller.places[work]) for caller in self._callers.values())

    @property
    def refused(self) -> int:
        """Refused calls that are not answered yet."""
        return len(self._refused)

    def expected_wait_ms(self, caller: CallerTurns) -> int:
        """How long more work of this caller would wait for its turn, as turns have come lately."""
        return max(1, round((caller.waiting + 1) * max(1, len(self._order)) * self._interval_us / 1_000))

    def next_turn_ms(self, caller: CallerTurns | None = None) -> int | None:
        """When one of those who wait has a turn, or this caller does; None: nobody waits, or it does not."""
        if not self._order or (caller is not None and not caller.waiting):
            return None
        return max(1, round((1 if caller is None else len(self._order)) * self._interval_us / 1_000))

    # Turns.

    async def turn(self, caller: CallerTurns, work: int) -> None:
        """Returns when it is this caller's turn."""
        self._note(caller)
        if self._may_go_on(caller):
            self._take(caller)
        else:
            await self._wait(caller, work, is_call=False)

    async def call_turn(self, caller: CallerTurns, work: int) -> None:
        """`turn` for a whole call. Raises what `refuse_waiting` was given."""
        if (caller.recent_calls <= RECENT_CALLS_MAX or self._is_alone) and self._may_go_on(caller):
            self._take(caller)
        else:
            await self._wait(caller, work, is_call=True)

    async def refusal_turn(self) -> None:
        """Returns when a refused call may be answered: in what time is left, which slows down who sends it again at
        once.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refused.append(future)
        self._schedule()
        await future

    def refuse_waiting(self, make_error: Callable[[], Exception]) -> None:
        """Calls that wait for their turn get an error in its place."""
        for caller in self._callers.values():
            for place in itertools.chain(*caller.places):
                if place.is_call and not place.future.done():
                    place.future.set_exception(make_error())

    # Inside.

    def _note(self, caller: CallerTurns) -> None:
        if caller is not self._latest:
            self._latest, self._mixed_us = caller, self._now_us()

    def _may_go_on(self, caller: CallerTurns) -> bool:
        if self._order and (caller.waiting or max(caller.start_us, self._virtual_us) >= self._order[0][0]):
            return False
        return not self._had_turn or self._now_us() - self._began_us < LOOP_TURN_US_MAX

    def _take(self, caller: CallerTurns) -> None:
        self._virtual_us = max(caller.start_us, self._virtual_us)
        caller.start_us = self._virtual_us + TURN_US_MIN
        if not self._had_turn:
            self._began_us = self._now_us()
        self._had_turn.append(caller)
        self._schedule()

    async def _wait(self, caller: CallerTurns, work: int, *, is_call: bool) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        now_us = self._now_us()
        if not self._order:
            self._granted_us = now_us
        if not caller.waiting:
            self._line_up(caller)
        caller.places[work].append(Place(future, now_us, is_call))
        self._schedule()
        await future

    def _line_up(self, caller: CallerTurns) -> None:
        caller.start_us = max(caller.start_us, self._virtual_us)
        heapq.heappush(self._order, (caller.start_us, next(self._arrivals), caller))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._on_next_loop_turn)

    def _on_next_loop_turn(self) -> None:
        self._is_scheduled = False
        now_us = self._now_us()
        self._charge(now_us)
        if not (self._order or self._refused):
            return
        if self._grant(now_us):
            self._schedule()
        elif self._quiet_timer is None:
            self._await_quiet()

    def _await_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        self._quiet_timer = loop.call_later(QUIET_MS / 1_000, self._on_quiet, self._accepted_us, QUIET_TURNS)

    def _on_quiet(self, accepted_us: int, turns: int) -> None:
        if self._accepted_us == accepted_us and turns:
            # The turn of the loop may have been a long one: a call that came in meanwhile needs some turns to be seen.
            asyncio.get_running_loop().call_soon(self._on_quiet, accepted_us, turns - 1)
            return
        self._quiet_timer = None
        if self._accepted_us == accepted_us:
            self._may_end = ENDING_MAX
            self._schedule()
        elif self._order or self._refused:
            self._await_quiet()

    @property
    def _is_alone(self) -> bool:
        """Whether one caller is all that came lately."""
        return self._accepted_us - self._mixed_us >= ALONE_US

    def _charge(self, now_us: int) -> None:
        if self._had_turn:
            each_us = (now_us - self._began_us) // len(self._had_turn)
            for caller in self._had_turn:
                caller.start_us += max(0, each_us - TURN_US_MIN)
            self._had_turn.clear()

    def _grant(self, now_us: int) -> bool:
        """Gives one turn to those who wait, since nobody knows how long it will take, or answers refused calls; whether
        there may be more to do in the next turn of the loop.
        """
        work = self._next_work()
        if work is None:
            while self._refused and self._may_end >= 1:
                self._answer_refused()
            return False
        caller = self._order[0][2]
        if caller.places[work][0].is_call and not self._is_alone:
            if self._may_end < 1:
                return False
            self._may_end -= 1
        heapq.heappop(self._order)
        place = caller.places[work].popleft()
        place.future.set_result(None)  # before `_take`, which has the next turn of the loop begin with its charge
        self._take(caller)
        if caller.waiting:
            self._line_up(caller)
        self._on_waited(work, now_us - place.since_us)
        self._interval_us += (now_us - self._granted_us - self._interval_us) / 16
        self._granted_us = now_us
        self._turns_since_refusal += 1
        if self._turns_since_refusal >= TURNS_PER_REFUSAL:
            self._answer_refused()
        return True

    def _next_work(self) -> int | None:
        """The sort of work that is next, of the first caller in order; None: nobody waits. Drops whoever has gone."""
        while self._order:
            start_us, _, caller = self._order[0]
            for work, places in enumerate(caller.places):
                while places and places[0].future.done():
                    places.popleft()
                if places and start_us >= caller.start_us:
                    return work
            heapq.heappop(self._order)
            if caller.waiting:  # it was charged for its latest turn meanwhile
                self._line_up(caller)
            else:
                self._forget_if_idle(caller)
        return None

    def _answer_refused(self) -> None:
        self._turns_since_refusal = 0
        while self._refused:
            future = self._refused.popleft()
            if not future.done():
                future.set_result(None)
                self._may_end -= 1
                return

    def _forget_if_idle(self, caller: CallerTurns) -> None:
        # A stream's reader may take turns after its call has ended, when a successor of the caller has its key.
        if not caller.calls and not caller.waiting and self._callers.get(caller.key) is caller:
            del self._callers[caller.key]
