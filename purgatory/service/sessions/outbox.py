"""The results that a session has not acknowledged yet, as the engine returned them; translated only when written.

A result's sequence number is its place in the order in which it entered the outbox, from 1. The outbox is two queues of
slices: those written on the current stream, and the others. A new stream starts with all of them unwritten again.
Slices are views of the engine's completions, so splitting one (a partial acknowledgement, a full message) copies
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.completions import Completions
from purgatory.service.budget.result_bytes import (
    FETCHED_BYTES,
    REFUSAL_BYTES,
    RESULT_BYTES,
    RESULT_ITEM_BYTES,
    SLICE_BYTES,
    STALE_MARK_BYTES,
)
from purgatory.service.sessions.packed import ArrayCompletions, packed
from purgatory.service.translate.uniform_columns import is_uniform

PACKED_TOGETHER: Final = 64
"""So many slices in a row are put together where each has"""
SMALL: Final = 4
"""no more results than this,"""
SMALL_ITEMS: Final = 64
"""and no more items: putting 64 results of 2,000 items together would hold the loop for 20 ms."""

UNLIMITED: Final = 2**63
"""Above any sequence number."""


Results = Completions | ArrayCompletions


@dataclass(slots=True, eq=False)
class ResultSlice:
    """Results `start` to `stop` of some completions, all of one kind; `refusals` has the reasons of refused ones."""

    completions: Results
    kind: int
    start: int
    stop: int
    item_start: int
    item_stop: int
    fetched_start: int
    """Where the slice begins in `completions.fetched`, if its kind is fetch."""
    refusals: Sequence[Refusal] = ()
    """One for each of the completions (not just those of the slice), or none."""

    def __post_init__(self) -> None:
        assert self.start < self.stop, f"an empty slice: start={self.start} stop={self.stop}"

    def __len__(self) -> int:
        return self.stop - self.start

    def held_bytes(self) -> int:
        """What the slice takes in memory, estimated."""
        items = self.item_stop - self.item_start
        held = SLICE_BYTES + len(self) * RESULT_BYTES + items * RESULT_ITEM_BYTES
        if self.kind == codes.FETCH:
            held += items * FETCHED_BYTES
        if self.completions.stale_marks:
            stale = [item for item in self.completions.stale_marks if self.item_start <= item < self.item_stop]
            held += len(stale) * STALE_MARK_BYTES
        for refusal in self.refusals[self.start : self.stop]:
            held += REFUSAL_BYTES + len(refusal.message) + len(refusal.field)
        return held

    def count_within(self, results_max: int, items_max: int) -> int:
        """How many results from the first on are at most so many, with at most so many items."""
        count = min(len(self), results_max)
        items = self.item_stop - self.item_start
        if items <= items_max:
            return count
        if items == len(self):  # nearly always: one item each
            return min(count, items_max)
        for place, item_count in enumerate(self.completions.item_counts[self.start : self.start + count]):
            items_max -= item_count
            if items_max < 0:
                return place
        return count

    def split(self, count: int) -> tuple[ResultSlice, ResultSlice]:
        """The first `count` results, and the rest."""
        assert 0 < count < len(self), f"count={count} of {len(self)}"
        middle = self.start + count
        items = sum(self.completions.item_counts[self.start : middle])
        item_middle = self.item_start + items
        head = ResultSlice(
            self.completions, self.kind, self.start, middle, self.item_start, item_middle,
            self.fetched_start, self.refusals,
        )  # fmt: skip
        tail = ResultSlice(
            self.completions, self.kind, middle, self.stop, item_middle, self.item_stop,
            self.fetched_start + items, self.refusals,
        )  # fmt: skip
        return head, tail


def slices_of(completions: Results, refusals: Sequence[Refusal] = ()) -> list[ResultSlice]:
    """Cuts completions into slices of one kind, in order."""
    kinds = completions.kinds
    if len(kinds) == 0:
        return []
    if is_uniform(bytes(kinds)):
        return [ResultSlice(completions, kinds[0], 0, len(kinds), 0, len(completions.item_partitions), 0, refusals)]
    slices: list[ResultSlice] = []
    start = item_start = fetched_start = 0
    while start < len(kinds):
        kind = kinds[start]
        stop = start
        while stop < len(kinds) and kinds[stop] == kind:
            stop += 1
        items = sum(completions.item_counts[start:stop])
        slices.append(
            ResultSlice(completions, kind, start, stop, item_start, item_start + items, fetched_start, refusals)
        )
        item_start += items
        if kind == codes.FETCH:
            fetched_start += items
        start = stop
    return slices


def _ignore(_bytes: int) -> None:
    pass


class Outbox:
    """One session's unacknowledged results. Sequence numbers never repeat and have no gaps."""

    def __init__(self, hold: Callable[[int], None] = _ignore) -> None:
        """`hold` is told by how many bytes more, or less, is held."""
        self._hold = hold
        self.held_bytes = 0
        """Of all results in it, estimated."""
        self._written: Final[deque[ResultSlice]] = deque()
        self._unwritten: Final[deque[ResultSlice]] = deque()
        self.last_sequence = 0
        """The newest result's; 0: there was none yet."""
        self.acknowledged_sequence = 0
        """Results up to this one were acknowledged and dropped."""
        self._next_sequence = 1
        """The first unwritten result's."""
        self._released_sequence = UNLIMITED
        """Results above this one may not be written yet: the journal holds them back until they are durable."""
        self._receipts_due: Final[deque[list[int]]] = deque()
        """For each batch without a receipt yet: the sequence number above which results may be its own, alone in a list
        by which the batch knows it. They rise."""

    @property
    def unacknowledged(self) -> int:
        return self.last_sequence - self.acknowledged_sequence

    @property
    def unwritten(self) -> int:
        """How many results have not been written on the current stream."""
        return self.last_sequence - self._next_sequence + 1

    def append(self, slices: Sequence[ResultSlice]) -> None:
        """Gives the next sequence numbers to these results."""
        self._unwritten.extend(slices)
        for part in slices:
            self.last_sequence += len(part)
        self._count(sum([part.held_bytes() for part in slices]))
        self._pack_tail(self._unwritten)

    def hold(self) -> None:
        """Results appended from now on are not written before they are released."""
        self._released_sequence = min(self._released_sequence, self.last_sequence)

    def release(self, sequence: int) -> None:
        """Results up to `sequence` may be written."""
        self._released_sequence = sequence

    def release_all(self) -> None:
        """All results may be written, also those appended later."""
        self._released_sequence = UNLIMITED

    def hold_for_receipt(self) -> list[int]:
        """Results appended from now on are not written before what is returned has been given to `receipt_sent`."""
        hold = [self.last_sequence]
        self._receipts_due.append(hold)
        return hold

    def receipt_sent(self, hold: list[int]) -> None:
        """The batch that holds results back has its receipt, or gets none."""
        for place, due in enumerate(self._receipts_due):
            if due is hold:
                del self._receipts_due[place]
                return

    def start_at(self, sequence: int) -> None:
        """Makes a new outbox continue one whose numbers were used up to `sequence`."""
        assert self.last_sequence == 0, f"the outbox has results up to {self.last_sequence} already"
        self.last_sequence = self.acknowledged_sequence = sequence
        self._next_sequence = sequence + 1

    def shift(self, count: int) -> None:
        """Raises all sequence numbers, those given out and those to come, by `count`."""
        self.last_sequence += count
        self.acknowledged_sequence += count
        self._next_sequence += count
        self._released_sequence += count
        for hold in self._receipts_due:
            hold[0] += count

    def rewind(self) -> None:
        """Makes all unacknowledged results unwritten, for a new stream."""
        self._unwritten.extendleft(reversed(self._written))
        self._written.clear()
        self._next_sequence = self.acknowledged_sequence + 1

    def acknowledge(self, sequence: int) -> None:
        """Drops results up to `sequence`, at most `last_sequence`; one that was acknowledged before changes nothing."""
        assert sequence <= self.last_sequence, f"sequence={sequence} last_sequence={self.last_sequence}"
        count = sequence - self.acknowledged_sequence
        if count <= 0:
            return
        self.acknowledged_sequence = sequence
        self._next_sequence = max(self._next_sequence, sequence + 1)
        count = self._drop_left(self._written, count)
        count = self._drop_left(self._unwritten, count)
        assert count == 0, f"{count} acknowledged results were not in the outbox"

    def take(self, results_max: int, items_max: int = UNLIMITED) -> tuple[int, list[ResultSlice]]:
        """The next unwritten results of one kind, at most so many, and the sequence number of the first.

        Together they have at most `items_max` items, but for a single result, which may have any number. They count as
        written from now on; `put_back` undoes that.
        """
        self._pack_tail(self._written)  # now, as what is taken last may be put back
        first_sequence = self._next_sequence
        taken: list[ResultSlice] = []
        released = self._released_sequence
        if self._receipts_due and self._receipts_due[0][0] < released:
            released = self._receipts_due[0][0]
        allowed = room = max(0, min(results_max, released - self._next_sequence + 1))
        while room and self._unwritten and (not taken or self._unwritten[0].kind == taken[0].kind):
            part = self._unwritten.popleft()
            count = part.count_within(room, items_max)
            if count == 0:
                if taken:
                    self._unwritten.appendleft(part)
                    break
                count = 1
            if count < len(part):
                whole = part
                part, rest = whole.split(count)
                self._unwritten.appendleft(rest)
                self._count(part.held_bytes() + rest.held_bytes() - whole.held_bytes())
            taken.append(part)
            room -= len(part)
            items_max -= part.item_stop - part.item_start
        self._written.extend(taken)
        self._next_sequence += allowed - room
        return first_sequence, taken

    def put_back(self, taken: Sequence[ResultSlice]) -> None:
        """Undoes the last `take`."""
        for part in reversed(taken):
            assert self._written[-1] is part, "only what was taken last can be put back"
            self._unwritten.appendleft(self._written.pop())
            self._next_sequence -= len(part)

    def discard(self) -> None:
        """The session is gone: nothing that is still done with its results counts."""
        self._hold(-self.held_bytes)
        self._hold = _ignore

    def _drop_left(self, queue: deque[ResultSlice], count: int) -> int:
        """Drops up to `count` results at the left of `queue`; returns how many are still to be dropped."""
        while count and queue:
            part = queue.popleft()
            self._count(-part.held_bytes())
            if len(part) > count:
                _, rest = part.split(count)
                queue.appendleft(rest)
                self._count(rest.held_bytes())
                return 0
            count -= len(part)
        return count

    def _pack_tail(self, queue: deque[ResultSlice]) -> None:
        """Puts the last slices together if they are many and small, as when nobody reads and waits end one by one."""
        if len(queue) < PACKED_TOGETHER:
            return
        kind = queue[-1].kind
        if kind == codes.FETCH:
            return
        tail: list[ResultSlice] = []
        for part in reversed(queue):
            if (
                len(part) > SMALL
                or part.item_stop - part.item_start > SMALL_ITEMS
                or part.kind != kind
                or part.refusals
            ):
                return
            tail.append(part)
            if len(tail) == PACKED_TOGETHER:
                break
        for part in tail:
            queue.pop()
            self._count(-part.held_bytes())
        tail.reverse()
        together = packed(tail)
        whole = ResultSlice(together, kind, 0, len(together.kinds), 0, len(together.item_partitions), 0)
        queue.append(whole)
        self._count(whole.held_bytes())

    def _count(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self._hold(more_bytes)
