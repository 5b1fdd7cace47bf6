"""Completed prefixes: the mark of work that is done out of order.

A mark promises everything below it. A program that works on several positions at once must therefore not report the
highest one that is done, but the lowest one that is not. `Prefix` finds it, and publishes it as a high watermark.
"""

import asyncio
import threading
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from purgatory_client.aio import AsyncClient
from purgatory_client.argument_checks import INT64_MAX, int64
from purgatory_client.errors import InvalidRequest, LimitExceeded, Unavailable
from purgatory_client.partition_names import PartitionName, partition_name
from purgatory_client.session.backoff import Backoff, set_within
from purgatory_client.waits import Name

_REPEAT_S: Final = 1.0
"""Seconds after which an unchanged mark is published again: a daemon restarted without a journal has lost it."""


class Prefix:
    """The positions of one log that are done, and the mark up to which all of them are.

    The mark is the lowest position that is in flight or missing, or the highest position plus one if there is none.
    *Missing* positions are below the highest one and were not reported yet; they hold the mark back, because they may
    still come. One that never will is a permanent gap: `release` it. If positions are started in rising order, as a
    Kafka consumer receives them, `in_order` does that for each position that was skipped.

    All methods may be called from any thread. The memory grows with the number of gaps between finished positions, not
    with the number of positions.

    Args:
        name: The mark: "projection/orders-0" or ("projection/orders", 0). Without a number: partition 0.
        first: The lowest position that is not done yet, for example the checkpoint of the last run.
        in_order: Positions are started in rising order, so one that was skipped never comes. Starting a lower position
            is then a repetition, and changes nothing.

    Raises:
        InvalidRequest: The name or `first` is invalid.
    """

    def __init__(self, name: Name, first: int = 0, *, in_order: bool = False) -> None:
        self.name: Final = _mark_name(name)
        self._in_order: Final = in_order
        self._mark = _position(first, "first")
        self._end = self._mark
        self._in_flight: Final[set[int]] = set()
        # Finished positions above the mark, as disjoint ranges [start, end) in rising order, with gaps between them.
        self._starts: Final[list[int]] = []
        self._ends: Final[list[int]] = []
        self._lock: Final = threading.Lock()
        self._on_move: Callable[[], object] | None = None

    @property
    def mark(self) -> int:
        """Every position below it is done or released."""
        return self._mark

    @property
    def in_flight(self) -> list[int]:
        """The positions that were started and are neither done nor released, in rising order."""
        with self._lock:
            return sorted(self._in_flight)

    @property
    def missing(self) -> list[range]:
        """The positions between the mark and the highest one that were never reported, as ranges in rising order."""
        with self._lock:
            known = [range(start, end) for start, end in zip(self._starts, self._ends, strict=True)]
            known += [range(position, position + 1) for position in self._in_flight]
            gaps, end = [], self._mark
            for one in sorted(known, key=lambda one: one.start):
                gaps += [range(end, one.start)] if end < one.start else []
                end = one.stop
            return gaps

    def started(self, position: int) -> None:
        """Work on a position begins. Does nothing if it is done, released or in flight already.

        Raises:
            InvalidRequest: The position is not an integer from 0 to 2**63 - 2.
        """
        _position(position, "position")
        with self._lock:
            self._start(position)

    def done(self, position: int) -> None:
        """The effects of a position can be read. It need not have been started, and may be reported again.

        Raises:
            InvalidRequest: As for `started`.
        """
        _position(position, "position")
        with self._lock:
            self._start(position)
            self._finish(position, position + 1)

    def release(self, position: int, end: int | None = None) -> None:
        """The positions from `position` to `end` - 1 will never be done: the mark no longer waits for them.

        Readers that wait for a later position are then answered without them. Release only what leaves nothing to
        read, such as an id whose transaction was rolled back.

        Args:
            position: The lowest position to release.
            end: The position after the last one. None: only one position.

        Raises:
            InvalidRequest: A position is not an integer from 0 to 2**63 - 2, or `end` is not above `position`.
        """
        _position(position, "position")
        after = position + 1 if end is None else _position(end, "end")
        if after <= position:
            raise InvalidRequest("end", f"{after} must be above the first position to release, {position}")
        with self._lock:
            self._end = max(self._end, after)
            self._finish(position, after)

    @asynccontextmanager
    async def publishing(self, client: AsyncClient) -> "AsyncIterator[Prefix]":
        """Publish the mark now, whenever it has moved, and once more at the end of the `async with` block.

        Moves while a message is on its way share the next one. While the daemon cannot be reached or is at a limit, for
        example because its disk is full, it is tried again.

        Args:
            client: The client to publish with. It must be open until the block ends.

        Raises:
            Unavailable: At the end of the block: the last mark could not be published.
            LimitExceeded: The same.
            PurgatoryClientError: The daemon refused the mark, for example because a role is missing. The block is
                cancelled.
        """
        loop, moved = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._on_move is not None:
                raise InvalidRequest("prefix", "it is published already; use one `publishing` block for each prefix")
            self._on_move = partial(loop.call_soon_threadsafe, moved.set)
        try:
            async with asyncio.TaskGroup() as group:
                publisher = group.create_task(self._publish(client, moved))
                yield self
                publisher.cancel()
            await self._advance(client)
        except BaseExceptionGroup as errors:
            # The group wraps an error of the block too, which its caller expects as it was raised.
            raise errors.exceptions[0] if len(errors.exceptions) == 1 else errors from None
        finally:
            with self._lock:  # so that no thread calls a loop that has been closed since
                self._on_move = None

    async def _publish(self, client: AsyncClient, moved: asyncio.Event) -> None:
        backoff = Backoff()
        while True:
            moved.clear()  # before the mark is read, so that a move during the call is published next
            try:
                await self._advance(client)
                backoff.reset()
            except (Unavailable, LimitExceeded):
                await asyncio.sleep(backoff.next_delay())
                continue
            await set_within(moved, _REPEAT_S)

    async def _advance(self, client: AsyncClient) -> None:
        await client.advance(self.name, high_watermark=self._mark)

    def _start(self, position: int) -> None:
        if self._in_order and position > self._end:
            self._finish(self._end, position)
        if position >= self._mark and not self._is_finished(position):
            self._in_flight.add(position)
        self._end = max(self._end, position + 1)

    def _is_finished(self, position: int) -> bool:
        place = bisect_right(self._starts, position)
        return place > 0 and position < self._ends[place - 1]

    def _finish(self, start: int, end: int) -> None:
        """Join a range with the finished ranges that it overlaps or touches, and move the mark if it touches that."""
        start = max(start, self._mark)
        if end <= start:
            return
        if end == start + 1:
            self._in_flight.discard(start)
        else:
            self._in_flight.difference_update([one for one in self._in_flight if start <= one < end])
        left, right = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if left < right:
            start, end = min(start, self._starts[left]), max(end, self._ends[right - 1])
        self._starts[left:right], self._ends[left:right] = [start], [end]
        if start == self._mark:
            self._mark = end
            del self._starts[0], self._ends[0]
            if self._on_move is not None:
                self._on_move()


def _mark_name(name: Name) -> PartitionName:
    if isinstance(name, str) and not name.rpartition("-")[2].isdecimal():
        name = (name, 0)
    return partition_name(name)


def _position(position: int, field: str) -> int:
    if not 0 <= int64(position, field) < INT64_MAX:
        raise InvalidRequest(field, f"{position} must be from 0 to 2**63 - 2")
    return position
