"""Order and retries of webhook deliveries.

Each host has a few slots. A new or unresponsive host has one slot until it answers, and while it stays unresponsive
there is a pause between attempts. Hosts that have not proven to be prompt (new, unresponsive or slow ones) share at
most half of all slots, so that they cannot delay webhooks to prompt hosts. A new host that finds these taken gets the
slot of a host that has not answered for `PROMPT_S`.
Within a host, senders (sessions) take turns. A delivery that waits for its retry uses no slot.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from purgatory.extensions.webhooks.webhook_poster import DELIVERED, REFUSED, UNREACHABLE, Attempt
from purgatory.service.fair_queue import Turn
from purgatory.v1 import webhook_pb2

LOGGER: Final = logging.getLogger(__name__)

LETTERS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Total size of all letters."""


class DeadLetters:
    """The dead letters by number; numbers increase.

    `changed(number, content)` is called for each change, with empty content when a letter is removed.

    When the list is full, the principal with the largest use of the exceeded resource (letters or bytes) loses its
    oldest letter, so no principal can displace the letters of one that has fewer.
    """

    def __init__(self, letters_max: int, changed: Callable[[int, bytes], None]) -> None:
        self._letters_max: Final = letters_max
        self._changed: Final = changed
        self._letters: Final[dict[int, webhook_pb2.DeadLetter]] = {}
        self._number_of: Final[dict[str, int]] = {}
        self._bytes_of: Final[dict[str, dict[int, int]]] = {}
        """The size of each letter, by principal and number."""
        self._last_number = 0
        self.held_bytes = 0
        self.given_up = 0
        """Letters added since this daemon started."""
        self.dropped = 0
        """Letters that made room for newer ones."""

    def __len__(self) -> int:
        return len(self._letters)

    @property
    def fill_ratio(self) -> float:
        """Share of the space in use, from 0 to 1: by number or by bytes, whichever is larger."""
        return max(len(self._letters) / self._letters_max, min(1.0, self.held_bytes / LETTERS_BYTES_MAX))

    def restore(self, number: int, content: bytes) -> None:
        """Add a letter from the journal.

        Raises:
            google.protobuf.message.DecodeError: The content is not a valid letter.
        """
        self._keep(number, webhook_pb2.DeadLetter.FromString(content), len(content))

    def add(self, letter: webhook_pb2.DeadLetter) -> None:
        """Keep a letter, in place of one with the same id; drop others if there are too many."""
        content = letter.SerializeToString()
        self.given_up += 1
        number = self._number_of.get(letter.webhook_id)
        if number is None:
            number = self._last_number + 1
        else:
            self._forget(number)
        self._keep(number, letter, len(content))
        self._changed(number, content)
        while len(self._letters) > self._letters_max:
            self._drop_one_of_the_largest(letter.principal, len)
        while self.held_bytes > LETTERS_BYTES_MAX and len(self._letters) > 1:
            self._drop_one_of_the_largest(letter.principal, lambda sizes: sum(sizes.values()))

    def remove(self, webhook_id: str) -> None:
        number = self._number_of.get(webhook_id)
        if number is not None:
            self._forget(number)
            self._changed(number, b"")

    def above(self, number: int) -> Iterator[tuple[int, webhook_pb2.DeadLetter]]:
        """Letters of higher numbers, in order."""
        for candidate in sorted(self._letters):
            if candidate > number:
                yield candidate, self._letters[candidate]

    def _drop_one_of_the_largest(self, newest: str, size: Callable[[dict[int, int]], int]) -> None:
        """Drop the oldest letter of the largest principal.

        `newest` is the principal that needs the space: of two principals with equal use, it loses a letter.
        """
        principal = max(self._bytes_of, key=lambda one: (size(self._bytes_of[one]), one == newest))
        lost = self._letters[min(self._bytes_of[principal])]
        LOGGER.error("webhook %s to %s was dropped: too many dead letters", lost.webhook_id, lost.callback_url)
        self.dropped += 1
        self.remove(lost.webhook_id)

    def _keep(self, number: int, letter: webhook_pb2.DeadLetter, size: int) -> None:
        self._last_number = max(self._last_number, number)
        self._letters[number] = letter
        self._number_of[letter.webhook_id] = number
        self._bytes_of.setdefault(letter.principal, {})[number] = size
        self.held_bytes += size

    def _forget(self, number: int) -> None:
        letter = self._letters.pop(number)
        del self._number_of[letter.webhook_id]
        sizes = self._bytes_of[letter.principal]
        self.held_bytes -= sizes.pop(number)
        if not sizes:
            del self._bytes_of[letter.principal]


DOUBLINGS_MAX: Final = 40
PROMPT_S: Final = 1.0
"""A host is prompt if its last attempt was answered within this time."""
PROMPT_HOSTS_MAX: Final = 1_000
"""Number of prompt hosts remembered (the most recent ones) while nothing is queued for them."""


class RetrySchedule(NamedTuple):
    """Exponential backoff: from `first_ms`, doubling up to `longest_ms`; a webhook is given up after `give_up_ms`."""

    first_ms: int
    longest_ms: int
    give_up_ms: int

    def pause_s(self, failures: int, jitter: float) -> float:
        """Return the backoff in seconds after `failures` consecutive failures. `jitter` (0 to 1) gives 50 to 100 %."""
        whole_ms = min(self.first_ms << min(failures - 1, DOUBLINGS_MAX), self.longest_ms)
        return whole_ms * (0.5 + jitter / 2) / 1_000


class OutgoingWebhook(Protocol):
    @property
    def host(self) -> str: ...

    @property
    def sender(self) -> Hashable: ...

    @property
    def is_wanted(self) -> bool:
        """Whether it should still be sent."""

    async def attempt(self) -> Attempt: ...

    def delivered(self) -> None: ...

    def given_up(self, attempts: int, reason: str) -> None: ...


class HostQueue:
    def __init__(self, host: str, *, is_prompt: bool) -> None:
        self.host: Final = host
        self.open = 0
        """Deliveries that have neither succeeded nor been given up."""
        self.active = 0
        """Slots in use."""
        self.is_silent = not is_prompt
        """Whether the last attempt was not answered; True before the first attempt to an unknown host."""
        self.is_prompt = is_prompt
        """Whether the last attempt was answered within `PROMPT_S`."""
        self.is_new = not is_prompt
        """Until the first attempt."""
        self.senders: Final[OrderedDict[Hashable, deque[Delivery]]] = OrderedDict()

    def next(self) -> "Delivery":
        """Remove and return the next delivery; senders take turns."""
        sender, deliveries = self.senders.popitem(last=False)
        delivery = deliveries.popleft()
        if deliveries:
            self.senders[sender] = deliveries
        return delivery


class Delivery:
    """A webhook, the time it was added, and its number of failed attempts."""

    def __init__(self, webhook: OutgoingWebhook, queue: HostQueue, now_s: float) -> None:
        self.webhook: Final = webhook
        self.queue: Final = queue
        self.since_s: Final = now_s
        self.failures = 0


class Deliveries:
    """Sends webhooks until each is delivered or given up."""

    def __init__(
        self,
        schedule: RetrySchedule,
        *,
        posts_max: int,
        posts_per_host_max: int,
        turn: Turn,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedule: Final = schedule
        self._posts_max: Final = posts_max
        self._posts_per_host_max: Final = posts_per_host_max
        self._turn: Final = turn
        self._jitter: Final = jitter
        self._sleep: Final = sleep
        self._clock_s: Final = clock_s
        self._queues: Final[dict[str, HostQueue]] = {}
        self._prompt_hosts: Final[OrderedDict[str, None]] = OrderedDict()
        """Prompt hosts that have no queue at the moment."""
        self._ready: Final = {is_prompt: OrderedDict[str, HostQueue]() for is_prompt in (False, True)}
        """Queues that wait for a slot, by `is_prompt`. The order of the two keys matters: unproven hosts (False) come
        first. They are limited to half of the slots and prompt hosts are not, so neither can starve the other.
        """
        self._posts: Final[set[asyncio.Task[None]]] = set()
        self._unproven_posts = 0
        """How many of `_posts` went to hosts that were not prompt when the post started."""
        self._unanswered: Final[OrderedDict[asyncio.Timeout, float]] = OrderedDict()
        """Attempts to silent hosts that have all their time, and when each began (on the event loop's clock)."""
        self._pauses: Final[dict[OutgoingWebhook, asyncio.Task[None]]] = {}
        self._rests: Final[set[asyncio.Task[None]]] = set()
        """Timers that free the slot of an unresponsive host."""
        self._open: Final[OrderedDict[Delivery, None]] = OrderedDict()
        """Deliveries that have neither succeeded nor been given up, oldest first; unwanted ones may be missing."""
        self._is_closing = False
        self.attempts: Final[dict[str, int]] = {}
        """Number of attempts, by result."""

    @property
    def in_flight(self) -> int:
        return len(self._posts)

    @property
    def paused(self) -> int:
        return len(self._pauses)

    @property
    def oldest_s(self) -> float | None:
        """Age of the oldest open delivery, in seconds; None: there is none."""
        while self._open:
            oldest = next(iter(self._open))
            if oldest.webhook.is_wanted:
                return self._clock_s() - oldest.since_s
            del self._open[oldest]  # an unwanted one is forgotten only at its turn
        return None

    def add(self, webhook: OutgoingWebhook) -> None:
        queue = self._queues.get(webhook.host)
        if queue is None:
            is_prompt = webhook.host in self._prompt_hosts
            self._prompt_hosts.pop(webhook.host, None)
            queue = self._queues[webhook.host] = HostQueue(webhook.host, is_prompt=is_prompt)
        queue.open += 1
        delivery = Delivery(webhook, queue, self._clock_s())
        self._open[delivery] = None
        self._enqueue(delivery)
        if queue.is_new and queue.open == 1 and self._unanswered:
            limit, began_s = self._unanswered.popitem(last=False)
            limit.reschedule(began_s + PROMPT_S)

    def abandon(self, webhook: OutgoingWebhook) -> None:
        """Forget a webhook that is no longer wanted, if it waits for a retry: pauses last up to an hour."""
        assert not webhook.is_wanted, "a wanted webhook must be delivered or given up"
        pause = self._pauses.get(webhook)
        if pause is not None:
            pause.cancel()

    def _enqueue(self, delivery: Delivery) -> None:
        delivery.queue.senders.setdefault(delivery.webhook.sender, deque()).append(delivery)
        self._make_ready(delivery.queue)
        self._start_some()

    def _make_ready(self, queue: HostQueue) -> None:
        """Mark the queue as ready if it has deliveries and its host may use another slot."""
        if queue.senders and queue.active < (1 if queue.is_silent else self._posts_per_host_max):
            ready = self._ready[queue.is_prompt]
            ready.setdefault(queue.host, queue)
            if queue.is_new:  # a new host may be prompt; the hosts queued before it have had an attempt
                ready.move_to_end(queue.host, last=False)

    def _start_some(self) -> None:
        """Start deliveries while there are free slots, one host at a time in turn."""
        for is_prompt, ready in self._ready.items():
            while ready and not self._is_closing and self._has_slot(is_prompt=is_prompt):
                _, queue = ready.popitem(last=False)
                queue.is_new = False
                queue.active += 1
                self._unproven_posts += not is_prompt
                task = asyncio.create_task(self._send(queue.next(), is_prompt=is_prompt), name="webhook")
                self._posts.add(task)
                self._make_ready(queue)

    def _has_slot(self, *, is_prompt: bool) -> bool:
        if len(self._posts) >= self._posts_max:
            return False
        return is_prompt or self._unproven_posts < max(1, self._posts_max // 2)

    async def _send(self, delivery: Delivery, *, is_prompt: bool) -> None:
        attempt: Attempt | None = None
        was_silent = delivery.queue.is_silent
        try:
            await self._turn()
            if delivery.webhook.is_wanted:
                started_s = self._clock_s()
                try:
                    attempt = await self._attempt(delivery)
                except Exception as error:
                    # Retried like a refusal. Otherwise the delivery, which is in no queue now, would be forgotten.
                    LOGGER.exception("sending a webhook to %s failed; will be retried", delivery.queue.host)
                    attempt = Attempt(REFUSED, f"an internal error of the daemon: {error!r}")
                self._judge(delivery.queue, attempt, self._clock_s() - started_s)
        finally:
            self._unproven_posts -= not is_prompt
            task = asyncio.current_task()
            assert task is not None, "runs as a task"
            self._posts.discard(task)
            if attempt is not None and was_silent and delivery.queue.is_silent:
                rest = asyncio.create_task(self._free_later(delivery.queue), name="webhook rest")
                self._rests.add(rest)
                rest.add_done_callback(self._rests.discard)
            else:
                self._free(delivery.queue)
        if attempt is None or not delivery.webhook.is_wanted or self._is_over(delivery, attempt):
            self._forget(delivery)

    async def _attempt(self, delivery: Delivery) -> Attempt:
        """Make one attempt. The time of one to a silent host is cut to `PROMPT_S` if a new host needs its slot."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                if delivery.queue.is_silent:
                    self._unanswered[limit] = asyncio.get_running_loop().time()
                return await delivery.webhook.attempt()
        except TimeoutError:
            return Attempt(UNREACHABLE, f"no answer within {PROMPT_S:g} s, and a new receiver waited")
        finally:
            self._unanswered.pop(limit, None)

    def _judge(self, queue: HostQueue, attempt: Attempt, took_s: float) -> None:
        """Count the attempt and update the state of the host."""
        self.attempts[attempt.end] = self.attempts.get(attempt.end, 0) + 1
        self._ready[queue.is_prompt].pop(queue.host, None)
        queue.is_silent = attempt.end == UNREACHABLE
        queue.is_prompt = not queue.is_silent and took_s <= PROMPT_S

    def _free(self, queue: HostQueue) -> None:
        queue.active -= 1
        self._make_ready(queue)
        self._start_some()

    async def _free_later(self, queue: HostQueue) -> None:
        """Keep the slot of an unresponsive host in use for one pause, so that its queue is not retried immediately."""
        await self._sleep(self._schedule.pause_s(1, self._jitter()))
        self._free(queue)

    def _is_over(self, delivery: Delivery, attempt: Attempt) -> bool:
        """Whether the webhook was delivered or given up. Otherwise a retry is scheduled."""
        if attempt.end == DELIVERED:
            delivery.webhook.delivered()
            return True
        delivery.failures += 1
        left_s = delivery.since_s + self._schedule.give_up_ms / 1_000 - self._clock_s()
        if attempt.is_final or left_s <= 0:
            delivery.webhook.given_up(delivery.failures, attempt.reason)
            return True
        pause_s = max(self._schedule.pause_s(delivery.failures, self._jitter()), attempt.retry_after_s)
        pause = asyncio.create_task(self._sleep(min(pause_s, left_s)), name="webhook pause")
        self._pauses[delivery.webhook] = pause
        pause.add_done_callback(lambda _: self._paused(delivery))
        return False

    def _paused(self, delivery: Delivery) -> None:
        """Called when a pause has ended, also by cancellation: a task cancelled before its first step runs no code."""
        del self._pauses[delivery.webhook]
        if not delivery.webhook.is_wanted:
            self._forget(delivery)
        elif not self._is_closing:
            self._enqueue(delivery)

    def _forget(self, delivery: Delivery) -> None:
        self._open.pop(delivery, None)
        delivery.queue.open -= 1
        if not delivery.queue.open:
            del self._queues[delivery.webhook.host]
            if delivery.queue.is_prompt:
                self._prompt_hosts[delivery.webhook.host] = None
                if len(self._prompt_hosts) > PROMPT_HOSTS_MAX:
                    self._prompt_hosts.popitem(last=False)

    async def close(self, grace_s: float, *, start_more: bool) -> None:
        """Wait up to `grace_s` seconds for posts in flight, then cancel everything.

        Queued deliveries still start during the grace period if `start_more`.
        """
        self._is_closing = not start_more
        try:
            async with asyncio.timeout(grace_s):
                while self._posts:
                    await asyncio.wait(set(self._posts))
        except TimeoutError:
            pass
        self._is_closing = True
        rest = [*self._posts, *self._pauses.values(), *self._rests]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
