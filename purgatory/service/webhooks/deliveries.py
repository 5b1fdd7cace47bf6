"""Which webhook is sent next, and when one that failed is tried again.

Each host has a few places; a host that does not answer has one until it does, so that what waits for it takes hardly
anything. Within a host senders (sessions) take turns. What is tried again later waits in a timer, and takes no place.
"""

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple, Protocol

from purgatory.service.fair_queue import Turn
from purgatory.service.webhooks.webhook_poster import DELIVERED, UNREACHABLE, Attempt

DOUBLINGS_MAX: Final = 40


class RetrySchedule(NamedTuple):
    """The pause after the first failure, which doubles up to the longest; and for how long a webhook is tried."""

    first_ms: int
    longest_ms: int
    give_up_ms: int

    def pause_s(self, failures: int, jitter: float) -> float:
        """The pause after so many failures; `jitter` is from 0 to 1, and 0 gives half the pause."""
        whole_ms = min(self.first_ms << min(failures - 1, DOUBLINGS_MAX), self.longest_ms)
        return whole_ms * (0.5 + jitter / 2) / 1_000


class Delivery(Protocol):
    """A webhook that is to be delivered."""

    @property
    def host(self) -> str: ...

    @property
    def sender(self) -> Hashable: ...

    @property
    def is_wanted(self) -> bool:
        """Whether it still is to be sent."""
        ...

    async def attempt(self) -> Attempt: ...

    def delivered(self) -> None: ...

    def given_up(self, attempts: int, reason: str) -> None: ...


class _HostLine:
    """What is to be sent to one host."""

    def __init__(self) -> None:
        self.open = 0
        """Trials that have not come to an end."""
        self.active = 0
        self.is_silent = False
        """Whether it has not answered the last attempt."""
        self.senders: Final[OrderedDict[Hashable, deque[_Trial]]] = OrderedDict()

    def next(self) -> "_Trial":
        """The next one, of the sender whose turn it is."""
        sender, trials = self.senders.popitem(last=False)
        trial = trials.popleft()
        if trials:
            self.senders[sender] = trials
        return trial


class _Trial:
    """A delivery, and how often it has failed since when."""

    def __init__(self, delivery: Delivery, line: _HostLine, now_s: float) -> None:
        self.delivery: Final = delivery
        self.line: Final = line
        self.since_s: Final = now_s
        self.failures = 0


class Deliveries:
    """Sends what it is given until each is delivered or given up."""

    def __init__(
        self,
        schedule: RetrySchedule,
        *,
        posts_max: int,
        posts_per_host_max: int,
        turn: Turn,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedule: Final = schedule
        self._posts_max: Final = posts_max
        self._posts_per_host_max: Final = posts_per_host_max
        self._turn: Final = turn
        self._jitter: Final = jitter
        self._sleep: Final = sleep
        self._clock_s: Final = clock_s
        self._lines: Final[dict[str, _HostLine]] = {}
        self._ready: Final[OrderedDict[str, _HostLine]] = OrderedDict()
        """Those that something waits in for a place."""
        self._posts: Final[set[asyncio.Task[None]]] = set()
        self._pauses: Final[set[asyncio.Task[None]]] = set()
        self._is_closing = False
        self.attempts: Final[dict[str, int]] = {}
        """By what became of them."""

    @property
    def in_flight(self) -> int:
        return len(self._posts)

    @property
    def paused(self) -> int:
        """How many are tried again later."""
        return len(self._pauses)

    def add(self, delivery: Delivery) -> None:
        line = self._lines.setdefault(delivery.host, _HostLine())
        line.open += 1
        self._line_up(_Trial(delivery, line, self._clock_s()))

    def _line_up(self, trial: _Trial) -> None:
        trial.line.senders.setdefault(trial.delivery.sender, deque()).append(trial)
        self._ready.setdefault(trial.delivery.host, trial.line)
        self._start_some()

    def _start_some(self) -> None:
        """Starts what there is a place for, one of each host in turn."""
        has_started = True
        while has_started:
            has_started = False
            for _ in range(len(self._ready)):
                if self._is_closing or len(self._posts) >= self._posts_max:
                    return
                host, line = self._ready.popitem(last=False)
                if line.active < (1 if line.is_silent else self._posts_per_host_max):
                    has_started = True
                    line.active += 1
                    task = asyncio.create_task(self._send(line.next()), name="webhook")
                    self._posts.add(task)
                if line.senders:
                    self._ready[host] = line

    async def _send(self, trial: _Trial) -> None:
        attempt: Attempt | None = None
        try:
            await self._turn()
            if trial.delivery.is_wanted:
                attempt = await trial.delivery.attempt()
        finally:
            trial.line.active -= 1
            task = asyncio.current_task()
            assert task is not None, "runs as a task"
            self._posts.discard(task)
        if attempt is not None:
            self.attempts[attempt.end] = self.attempts.get(attempt.end, 0) + 1
            trial.line.is_silent = attempt.end == UNREACHABLE
        if attempt is None or not trial.delivery.is_wanted or self._is_over(trial, attempt):
            self._forget(trial)
        self._start_some()

    def _is_over(self, trial: _Trial, attempt: Attempt) -> bool:
        """Whether a delivery that still is wanted has come to its end; if not, it is tried again after a pause."""
        if attempt.end == DELIVERED:
            trial.delivery.delivered()
            return True
        trial.failures += 1
        left_s = trial.since_s + self._schedule.give_up_ms / 1_000 - self._clock_s()
        if attempt.is_final or left_s <= 0:
            trial.delivery.given_up(trial.failures, attempt.reason)
            return True
        pause_s = max(self._schedule.pause_s(trial.failures, self._jitter()), attempt.retry_after_s)
        task = asyncio.create_task(self._pause(trial, min(pause_s, left_s)), name="webhook pause")
        self._pauses.add(task)
        task.add_done_callback(self._pauses.discard)
        return False

    async def _pause(self, trial: _Trial, pause_s: float) -> None:
        await self._sleep(pause_s)
        if trial.delivery.is_wanted:
            self._line_up(trial)
        else:
            self._forget(trial)

    def _forget(self, trial: _Trial) -> None:
        trial.line.open -= 1
        if not trial.line.open:
            self._lines.pop(trial.delivery.host, None)

    async def close(self, grace_s: float, *, start_more: bool) -> None:
        """Ends what is in flight within `grace_s`; what waits is begun in that time only if `start_more`."""
        self._is_closing = not start_more
        try:
            async with asyncio.timeout(grace_s):
                while self._posts:
                    await asyncio.wait(set(self._posts))
        except TimeoutError:
            pass
        self._is_closing = True
        rest = [*self._posts, *self._pauses]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
