"""Which webhook is sent next, and when one that failed is tried again.

Each host has a few places; a new host, or one that does not answer, has one until it answers, and pauses between
attempts while it stays silent. Hosts that have not proven to be prompt (new, silent or slow ones) have at most half of
all places together; the rest is for prompt hosts.
Within a host senders (sessions) take turns. A delivery that is retried later waits in a timer and takes no place.
"""

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Final, NamedTuple, Protocol

from purgatory.extensions.webhooks.webhook_poster import DELIVERED, UNREACHABLE, Attempt
from purgatory.service.fair_queue import Turn

DOUBLINGS_MAX: Final = 40
PROMPT_S: Final = 1.0
"""A host is prompt if its last attempt was answered within this time."""
PROMPT_HOSTS_MAX: Final = 1_000
"""Prompt hosts that are remembered when nothing is to be sent to them, the latest ones."""


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

    def __init__(self, host: str, *, is_prompt: bool) -> None:
        self.host: Final = host
        self.open = 0
        """Trials that have not come to an end."""
        self.active = 0
        """Places in use."""
        self.is_silent = not is_prompt
        """Whether it has not answered the last attempt, if there was one."""
        self.is_prompt = is_prompt
        """Whether it has answered the last attempt, and within `PROMPT_S`."""
        self.is_new = not is_prompt
        """Until the first attempt."""
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
        self._prompt_hosts: Final[OrderedDict[str, None]] = OrderedDict()
        """Those without a line."""
        self._ready: Final = {is_prompt: OrderedDict[str, _HostLine]() for is_prompt in (False, True)}
        """Lines with deliveries that wait for a place, by whether their hosts are prompt. Unproven ones are looked at
        first: they are limited to half of the places, prompt ones are not, and neither must starve the other.
        """
        self._posts: Final[set[asyncio.Task[None]]] = set()
        self._unproven_posts = 0
        """Those of them to hosts that were not prompt when they were started."""
        self._pauses: Final[set[asyncio.Task[None]]] = set()
        self._rests: Final[set[asyncio.Task[None]]] = set()
        """Of places of hosts that stay silent."""
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
        line = self._lines.get(delivery.host)
        if line is None:
            is_prompt = delivery.host in self._prompt_hosts
            self._prompt_hosts.pop(delivery.host, None)
            line = self._lines[delivery.host] = _HostLine(delivery.host, is_prompt=is_prompt)
        line.open += 1
        self._line_up(_Trial(delivery, line, self._clock_s()))

    def _line_up(self, trial: _Trial) -> None:
        trial.line.senders.setdefault(trial.delivery.sender, deque()).append(trial)
        self._make_ready(trial.line)
        self._start_some()

    def _make_ready(self, line: _HostLine) -> None:
        """Let the line wait for a place among all, if something waits in it and it may use another place."""
        if line.senders and line.active < (1 if line.is_silent else self._posts_per_host_max):
            ready = self._ready[line.is_prompt]
            ready.setdefault(line.host, line)
            if line.is_new:  # it may turn out to be prompt; those before it have had a chance
                ready.move_to_end(line.host, last=False)

    def _start_some(self) -> None:
        """Start deliveries that there is a place for, one of each host in turn."""
        for is_prompt, ready in self._ready.items():
            while ready and not self._is_closing and self._has_place(is_prompt=is_prompt):
                _, line = ready.popitem(last=False)
                line.is_new = False
                line.active += 1
                self._unproven_posts += not is_prompt
                task = asyncio.create_task(self._send(line.next(), is_prompt=is_prompt), name="webhook")
                self._posts.add(task)
                self._make_ready(line)

    def _has_place(self, *, is_prompt: bool) -> bool:
        if len(self._posts) >= self._posts_max:
            return False
        return is_prompt or self._unproven_posts < max(1, self._posts_max // 2)

    async def _send(self, trial: _Trial, *, is_prompt: bool) -> None:
        attempt: Attempt | None = None
        was_silent = trial.line.is_silent
        try:
            await self._turn()
            if trial.delivery.is_wanted:
                started_s = self._clock_s()
                attempt = await trial.delivery.attempt()
                self._judge(trial.line, attempt, self._clock_s() - started_s)
        finally:
            self._unproven_posts -= not is_prompt
            task = asyncio.current_task()
            assert task is not None, "runs as a task"
            self._posts.discard(task)
            if attempt is not None and was_silent and trial.line.is_silent:
                self._start(self._rests, self._free_later(trial.line))
            else:
                self._free(trial.line)
        if attempt is None or not trial.delivery.is_wanted or self._is_over(trial, attempt):
            self._forget(trial)

    def _judge(self, line: _HostLine, attempt: Attempt, took_s: float) -> None:
        """Count the attempt, and note whether the host is silent or prompt."""
        self.attempts[attempt.end] = self.attempts.get(attempt.end, 0) + 1
        self._ready[line.is_prompt].pop(line.host, None)
        line.is_silent = attempt.end == UNREACHABLE
        line.is_prompt = not line.is_silent and took_s <= PROMPT_S

    def _free(self, line: _HostLine) -> None:
        line.active -= 1
        self._make_ready(line)
        self._start_some()

    async def _free_later(self, line: _HostLine) -> None:
        """A host that stays silent is not tried again at once, whatever waits for it."""
        await self._sleep(self._schedule.pause_s(1, self._jitter()))
        self._free(line)

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
        self._start(self._pauses, self._pause(trial, min(pause_s, left_s)))
        return False

    def _start(self, tasks: set[asyncio.Task[None]], pause: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(pause, name="webhook pause")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _pause(self, trial: _Trial, pause_s: float) -> None:
        await self._sleep(pause_s)
        if trial.delivery.is_wanted:
            self._line_up(trial)
        else:
            self._forget(trial)

    def _forget(self, trial: _Trial) -> None:
        trial.line.open -= 1
        if not trial.line.open:
            del self._lines[trial.delivery.host]
            if trial.line.is_prompt:
                self._prompt_hosts[trial.delivery.host] = None
                if len(self._prompt_hosts) > PROMPT_HOSTS_MAX:
                    self._prompt_hosts.popitem(last=False)

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
        rest = [*self._posts, *self._pauses, *self._rests]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
