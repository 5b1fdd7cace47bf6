"""The results that a session has not acknowledged yet, as the engine returned them; translated only when written.

A result's sequence number is its place in the order in which it entered the outbox, from 1. The outbox is two queues of
slices: those written on the current stream, and the others. A new stream starts with all of them unwritten again.
Slices are views of the engine's completions, so splitting one (a partial acknowledgement, a full message) copies
nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from purgatory import sizes
from purgatory.engine import codes
from purgatory.service.translate.result_slices import ResultSlice, packed

UNLIMITED: Final = 2**63
"""Greater than any sequence number."""


@dataclass(slots=True, eq=False)
class Hold:
    """Results above `sequence` must not be written until a batch has its receipt."""

    sequence: int


def _ignore(_bytes: int) -> None:
    pass


class Outbox:
    """The unacknowledged results of one session. Sequence numbers have no gaps and are never reused."""

    def __init__(self, hold: Callable[[int], None] = _ignore) -> None:
        """`hold` is called with each change of `held_bytes`."""
        self._hold = hold
        self.held_bytes = 0
        """Estimated memory of all results in the outbox."""
        # Invariant (see `check`): acknowledged < next <= last + 1. `_written` has the results after the acknowledged
        # one and before `_next_sequence`, `_unwritten` those from there on, without a gap.
        self._written: Final[deque[ResultSlice]] = deque()
        self._unwritten: Final[deque[ResultSlice]] = deque()
        # Slices added to each queue since `_pack_tail` last looked at it: a look at each result would be a walk over
        # the last slices for each.
        self._unpacked_written = 0
        self._unpacked_unwritten = 0
        self.last_sequence = 0
        """Sequence number of the newest result; 0: there was none."""
        self.acknowledged_sequence = 0
        """Results up to this one have been acknowledged and dropped."""
        self._next_sequence = 1
        """Sequence number of the first unwritten result."""
        self._released_sequence = UNLIMITED
        """Results above this one must not be written yet: the journal holds them until they are durable."""
        self._receipts_due: Final[deque[Hold]] = deque()
        """For each batch without a receipt: the sequence number above which results may belong to it. Each number is in
        a list of its own, which identifies the batch and lets `shift` change the number. The numbers rise.
        """

    def __iter__(self) -> Iterator[ResultSlice]:
        """The unacknowledged results, oldest first."""
        return chain(self._written, self._unwritten)

    @property
    def unacknowledged(self) -> int:
        return self.last_sequence - self.acknowledged_sequence

    @property
    def unwritten(self) -> int:
        """The number of results not yet written on the current stream."""
        return self.last_sequence - self._next_sequence + 1

    def append(self, slices: Sequence[ResultSlice]) -> None:
        """Add results; they get the next sequence numbers."""
        for part in slices:
            self._unwritten.append(part)
            self.last_sequence += part.stop - part.start
            self._count(part.held_bytes())
        self._unpacked_unwritten += len(slices)
        if self._unpacked_unwritten >= sizes.PACKED_TOGETHER:
            self._unpacked_unwritten = 0
            self._pack_tail(self._unwritten)

    def hold(self) -> None:
        """Hold back results that are appended from now on until they are released."""
        # Never raised: results that an earlier call holds back stay held.
        self._released_sequence = min(self._released_sequence, self.last_sequence)

    def hold_above(self, sequence: int) -> None:
        """Hold back results above `sequence` until they are released."""
        self._released_sequence = sequence

    def release(self, sequence: int) -> None:
        """Allow held results up to `sequence` to be written."""
        # In async mode, all results may have been released since the group of these was sealed: they stay released.
        if self._released_sequence < UNLIMITED:
            self._released_sequence = sequence

    def release_all(self) -> None:
        """Allow all results to be written, including those appended later."""
        self._released_sequence = UNLIMITED

    def hold_for_receipt(self) -> Hold:
        """Hold back results that are appended from now on until the returned hold is passed to `receipt_sent`.

        A client must not get the result of an operation before the receipt of its batch.
        """
        hold = Hold(self.last_sequence)
        self._receipts_due.append(hold)
        return hold

    def receipt_sent(self, hold: Hold) -> None:
        """Release a hold: the batch has its receipt, or gets none."""
        for place, due in enumerate(self._receipts_due):
            # By identity, because two holds may have the same number.
            if due is hold:
                del self._receipts_due[place]
                return

    def start_at(self, sequence: int) -> None:
        """Continue numbering after `sequence` in a new outbox."""
        assert self.last_sequence == 0, f"the outbox has results up to {self.last_sequence} already"
        self.last_sequence = self.acknowledged_sequence = sequence
        self._next_sequence = sequence + 1

    def shift(self, count: int) -> None:
        """Increase all sequence numbers, assigned and future, by `count`."""
        self.last_sequence += count
        self.acknowledged_sequence += count
        self._next_sequence += count
        # A shift of UNLIMITED only makes it larger, so it stays above all numbers.
        self._released_sequence += count
        for hold in self._receipts_due:
            hold.sequence += count

    def rewind(self) -> None:
        """Mark all unacknowledged results as unwritten, for a new stream."""
        # `extendleft` reverses, so the reversed queue keeps its order.
        self._unwritten.extendleft(reversed(self._written))
        self._written.clear()
        self._next_sequence = self.acknowledged_sequence + 1

    def acknowledge(self, sequence: int) -> None:
        """Drop results up to `sequence`, which is at most `last_sequence`. Acknowledging twice changes nothing."""
        assert sequence <= self.last_sequence, f"sequence={sequence} last_sequence={self.last_sequence}"
        count = sequence - self.acknowledged_sequence
        if count <= 0:
            return
        self.acknowledged_sequence = sequence
        # A client may acknowledge results that this stream has not written, because it has them from an earlier one.
        self._next_sequence = max(self._next_sequence, sequence + 1)
        count = self._drop_left(self._written, count)
        count = self._drop_left(self._unwritten, count)
        assert count == 0, f"{count} acknowledged results were not in the outbox"

    def take(self, results_max: int, items_max: int = UNLIMITED) -> tuple[int, list[ResultSlice]]:
        """Take the next unwritten results of one kind. They count as written unless they are `put_back`.

        Args:
            results_max: Maximum number of results.
            items_max: Maximum number of items in all of them. A single result may have more.

        Returns:
            The sequence number of the first result, and the results.
        """
        first_sequence = self._next_sequence
        taken: list[ResultSlice] = []
        released = self._released_sequence
        # The first hold has the lowest number.
        if self._receipts_due:
            released = min(released, self._receipts_due[0].sequence)
        # Below 0 if a release has lowered the limit under what was written before.
        room = max(0, min(results_max, released - self._next_sequence + 1))
        while room and self._unwritten and (not taken or self._unwritten[0].kind == taken[0].kind):
            # A result with more items than the limit is written alone; otherwise it would never be written.
            count = self._unwritten[0].count_within(room, items_max) or (0 if taken else 1)
            if count == 0:
                break
            part = self._first_unwritten(count)
            # Nothing may raise between these lines: a slice is in one of the two queues at any time.
            self._written.append(part)
            self._unwritten.popleft()
            self._next_sequence += count
            self._unpacked_written += 1
            taken.append(part)
            room -= count
            items_max -= part.item_stop - part.item_start
        return first_sequence, taken

    def _first_unwritten(self, count: int) -> ResultSlice:
        """Make the first `count` unwritten results a slice of their own, and return it."""
        whole = self._unwritten[0]
        if count == len(whole):
            return whole
        part, rest = whole.split(count)
        self._unwritten.appendleft(part)
        self._unwritten[1] = rest
        # Not zero: each slice is counted with an overhead.
        self._count(part.held_bytes() + rest.held_bytes() - whole.held_bytes())
        return part

    def put_back(self, taken: Sequence[ResultSlice]) -> None:
        """Undo the last `take`."""
        for part in reversed(taken):
            assert self._written[-1] is part, "only what was taken last can be put back"
            self._unwritten.appendleft(self._written.pop())
            self._next_sequence -= len(part)

    def pack_written(self) -> None:
        """Save the memory of results that were written one by one. What was taken can no longer be put back."""
        if self._unpacked_written >= sizes.PACKED_TOGETHER:
            self._unpacked_written = 0
            self._pack_tail(self._written)

    def discard(self) -> None:
        """Stop counting memory: the session has been dropped, although a stream may still write its results."""
        # `held_bytes` itself stays: a stream that still writes counts its own slices out of it.
        self._hold(-self.held_bytes)
        self._hold = _ignore

    def check(self) -> None:
        """Assert the invariants. Simulations and tests call it; it reads every slice."""
        written = sum(map(len, self._written))
        unwritten = sum(map(len, self._unwritten))
        numbers = f"acknowledged={self.acknowledged_sequence} next={self._next_sequence} last={self.last_sequence}"
        assert self.acknowledged_sequence < self._next_sequence <= self.last_sequence + 1, numbers
        assert written == self._next_sequence - 1 - self.acknowledged_sequence, f"{written} written, {numbers}"
        assert unwritten == self.unwritten, f"{unwritten} in the queue, {numbers}"
        held = sum(part.held_bytes() for part in (*self._written, *self._unwritten))
        assert held == self.held_bytes, f"held_bytes={self.held_bytes}, the slices have {held}"
        holds = [hold.sequence for hold in self._receipts_due]
        assert holds == sorted(holds), f"holds of receipts must rise: {holds}"
        for part in (*self._written, *self._unwritten):
            counts = part.completions.item_counts[part.start : part.stop]
            assert part.item_stop - part.item_start == sum(counts), f"items of a slice: {part}"
            assert all(kind == part.kind for kind in part.completions.kinds[part.start : part.stop]), f"kinds: {part}"

    def _drop_left(self, queue: deque[ResultSlice], count: int) -> int:
        """Drop up to `count` results from the left of `queue`; return how many remain to be dropped."""
        while count and queue:
            part = queue[0]
            # Counted out as a whole and the rest in again: a slice has an overhead, so the parts do not add up to the
            # whole.
            if len(part) > count:
                _, queue[0] = part.split(count)
                self._count(queue[0].held_bytes() - part.held_bytes())
                return 0
            queue.popleft()
            self._count(-part.held_bytes())
            count -= len(part)
        return count

    def _pack_tail(self, queue: deque[ResultSlice]) -> None:
        """Concatenate the last slices if they are many and small: waits that end one by one while no client reads."""
        if len(queue) < sizes.PACKED_TOGETHER:
            return
        kind = queue[-1].kind
        # `packed` has no columns for what fetches have read.
        if kind == codes.FETCH:
            return
        tail: list[ResultSlice] = []
        for part in reversed(queue):
            if (
                len(part) > sizes.PACKED_RESULTS_MAX
                or part.item_stop - part.item_start > sizes.PACKED_ITEMS_MAX
                or part.kind != kind
                or part.refusals
            ):
                return
            tail.append(part)
            if len(tail) == sizes.PACKED_TOGETHER:
                break
        tail.reverse()
        # Such results then take a sixth of the memory: a set of columns costs a kilobyte, whatever it holds.
        together = packed(tail)
        whole = ResultSlice(together, kind, 0, len(together.kinds), 0, len(together.item_partitions), 0)
        for _ in tail:
            queue.pop()
        queue.append(whole)
        self._count(whole.held_bytes() - sum([part.held_bytes() for part in tail]))

    def _count(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self._hold(more_bytes)
