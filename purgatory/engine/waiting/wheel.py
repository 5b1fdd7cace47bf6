"""A hierarchical timing wheel over slots: the engine's only timer. It never reads a clock; time is an argument.

A wheel of level 1 has `wheel_size` buckets, each `tick_ms` wide. Deadlines beyond its interval (`tick_ms * wheel_size`)
go to an overflow wheel, whose tick is that interval, and so on. When an overflow bucket is due, its entries cascade to
finer wheels, until they fire at their own tick. A small heap orders the non-empty buckets, so passing over empty
buckets costs nothing.

| operation                  | this wheel        | heap of n timers |
|----------------------------|-------------------|------------------|
| add                        | O(levels made)    | O(log n)         |
| remove                     | O(1)              | O(n), or lazily  |
| fire one                   | O(levels made)    | O(log n)         |
| next_expiration_ms         | O(1) amortised    | O(1)             |
| a tick with nothing due    | nothing           | nothing          |
| bytes for an entry         | 16                | 100 and more     |

Entries with the same deadline fire in the order in which they were added. Entries in a coarser bucket were added
earlier, so cascading entries go to the front of their finer bucket. Of buckets that are due at the same time, the
cascading levels are processed first, from fine to coarse, and level 1, which fires, last.

A bucket is a ring of slots, doubly linked through two packed arrays. The rings' sentinels are the first nodes of the
same arrays, so linking has no special case. Sentinels exist for every level that can ever be needed; a level's clock is
set when its first entry is added.

Never early: `round_up_to_tick` is the only place where a deadline loses precision, and it rounds up. Kafka's wheel
rounds down (docs/semantics.md, case 5): with a tick of 20 ms, a wait until 437 ends at 420 there and at 440 here.

Worked example: tick 1 ms, size 3, so that level 1 spans 3 ms, level 2 spans 9, level 3 spans 27. At clock 0:

    add 2   -> level 1, bucket 2, due at 2
    add 5   -> level 2, bucket 1, due at 3 (it holds 3, 4 and 5)
    add 8   -> level 2, bucket 2, due at 6
    add 26  -> level 3, bucket 2, due at 18

    advance to 2  : 2 fires
    advance to 3  : 5 cascades to level 1, bucket 2, due at 5
    advance to 17 : 5 fires; 8 cascades at 6 to level 1, bucket 2, and fires; the clock is then 8
    advance to 18 : 26 cascades to level 2, bucket 2, due at 24
    advance to 26 : 26 cascades at 24 to level 1, bucket 2, and fires
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from purgatory.engine.waiting.heap import PackedHeap

DEADLINE_BITS: Final = 62
DEADLINE_MAX: Final[i64] = 2**DEADLINE_BITS
"""Later deadlines are capped at this one: 146 million years of milliseconds; sums with it cannot overflow."""

TICK_MS_MAX: Final[i64] = 2**31
WHEEL_SIZE_MAX: Final[i64] = 2**16

MOVES_MAX: Final[i64] = 100_000
"""One `advance` takes at most this many entries out of buckets, so that many due timers do not block the caller."""

UNLINKED: Final = -1
NOT_QUEUED: Final = -1
NONE_RECENT: Final = -1


def round_up_to_tick(deadline_ms: i64, tick_ms: i64) -> i64:
    """The first multiple of `tick_ms` at or after `deadline_ms`, which is capped at `DEADLINE_MAX` first."""
    if deadline_ms >> DEADLINE_BITS > 0:
        deadline_ms = DEADLINE_MAX
    # Every add passes here, so the default tick of 1 ms must not pay for a division.
    if tick_ms == 1:
        return deadline_ms
    return (deadline_ms + tick_ms - 1) // tick_ms * tick_ms


def floor_to_tick(time_ms: i64, tick_ms: i64) -> i64:
    """The last multiple of `tick_ms` at or before `time_ms`."""
    return time_ms // tick_ms * tick_ms


def bucket_index(deadline_ms: i64, tick_ms: i64, wheel_size: i64) -> i64:
    """The bucket, 0 to `wheel_size - 1`, that holds `deadline_ms` in a wheel whose tick is `tick_ms`."""
    if tick_ms == 1:
        return deadline_ms % wheel_size
    return deadline_ms // tick_ms % wheel_size


def level_tick_ms(level: i64, tick_ms: i64, wheel_size: i64) -> i64:
    """The tick of a level: `tick_ms` for level 1, and `wheel_size` times more for each further level."""
    tick: i64 = tick_ms
    while level > 1:
        tick *= wheel_size
        level -= 1
    return tick


def levels_needed(tick_ms: i64, wheel_size: i64) -> i64:
    """How many levels are needed to reach `DEADLINE_MAX` from any clock: the interval of the last one exceeds it."""
    levels: i64 = 1
    tick: i64 = tick_ms
    # Divided, because `tick * wheel_size` could exceed 64 bits, and compiled i64 arithmetic wraps without an error.
    while tick <= DEADLINE_MAX // wheel_size:
        tick *= wheel_size
        levels += 1
    return levels


class TimingWheel:
    """Timers for slots: small indexes chosen by the caller, each with at most one deadline.

    `count` is the number of linked slots, `levels` the number of levels in use so far, `now_ms` the latest time passed
    in, and `moves_total` how many entries `advance` has taken out of buckets. Read them, never set them. All times are
    milliseconds.
    """

    def __init__(self, tick_ms: i64, wheel_size: i64, start_ms: i64) -> None:
        assert 1 <= tick_ms <= TICK_MS_MAX, f"tick_ms={tick_ms} is not in 1..{TICK_MS_MAX}"
        assert 2 <= wheel_size <= WHEEL_SIZE_MAX, f"wheel_size={wheel_size} is not in 2..{WHEEL_SIZE_MAX}"
        assert 0 <= start_ms <= DEADLINE_MAX, f"start_ms={start_ms} is not in 0..{DEADLINE_MAX}"
        self.tick_ms: i64 = tick_ms
        self.wheel_size: i64 = wheel_size
        self.now_ms: i64 = start_ms
        self.count: i64 = 0
        self.levels: i64 = 1
        self.moves_total: i64 = 0
        levels_max: i64 = levels_needed(tick_ms, wheel_size)
        # Kafka's TimingWheel makes overflow wheels on demand. Here the sentinels of all levels exist from the start,
        # which are 15 levels and 300 sentinels by default, so that linking has no case for a missing level.
        self._top: i64 = levels_max - 1
        self._base: i64 = levels_max * wheel_size
        self._level_ticks: vec[i64] = vec[i64]()
        self._level_clocks: vec[i64] = vec[i64]()
        level: i64 = 1
        while level <= levels_max:
            tick: i64 = level_tick_ms(level, tick_ms, wheel_size)
            self._level_ticks = append(self._level_ticks, tick)
            self._level_clocks = append(self._level_clocks, floor_to_tick(start_ms, tick))
            level += 1
        self._queue: PackedHeap = PackedHeap()
        self._recent_ms: i64 = NONE_RECENT
        self._recent_bucket: i64 = 0
        self._bucket_expirations: vec[i64] = vec[i64]()
        # The capacities differ so that these columns are not all copied at the same row (see `tables`).
        self._next: vec[i32] = vec[i32](capacity=29)
        self._prev: vec[i32] = vec[i32](capacity=19)
        self._deadlines: vec[i64] = vec[i64](capacity=28)
        bucket: i64 = 0
        while bucket < self._base:
            self._bucket_expirations = append(self._bucket_expirations, NOT_QUEUED)
            # A sentinel that is linked to itself is an empty ring.
            self._next = append(self._next, i32(bucket))
            self._prev = append(self._prev, i32(bucket))
            bucket += 1

    def ensure(self, slot_count: i64) -> None:
        """Make room for slots 0 to `slot_count - 1`. Never shrinks. Moves the arrays: keep no alias across it."""
        slot: i64 = i64(len(self._deadlines))
        while slot < slot_count:
            self._deadlines = append(self._deadlines, 0)
            self._next = append(self._next, i32(UNLINKED))
            self._prev = append(self._prev, i32(UNLINKED))
            slot += 1

    def add(self, slot: i64, deadline_ms: i64) -> bool:
        """Set a slot's deadline, rounded up to a tick, in place of an earlier one.

        Returns False, with nothing linked, if the deadline is already due by the wheel's clock. The clock is the time
        of the last due bucket and never past `now_ms`, so on an idle wheel a deadline in the past may be linked: the
        next `advance` fires it.
        """
        if self._next[self._base + slot] != UNLINKED:
            self._unlink(self._base + slot)
        rounded: i64 = round_up_to_tick(deadline_ms, self.tick_ms)
        # Stored even if nothing gets linked: the lateness of an operation that is restored overdue is measured from it.
        self._deadlines[slot] = rounded
        return self._link(self._base + slot, rounded)

    def remove(self, slot: i64) -> bool:
        """Remove a slot's deadline. False: it had none. Its bucket stays queued and is dropped when it is due."""
        if self._next[self._base + slot] == UNLINKED:
            return False
        self._unlink(self._base + slot)
        return True

    def deadline_ms(self, slot: i64) -> i64:
        """The last deadline set for the slot, rounded up to a tick."""
        return self._deadlines[slot]

    def next_expiration_ms(self) -> i64:
        """When to call `advance` next: the time of the first non-empty bucket; -1 if there is none.

        At that time its entries may merely cascade. A value in the past means that `advance` must be called now.
        """
        queue = self._queue
        while queue.size > 0:
            bucket: i64 = queue.top_value() % self._base
            if i64(self._next[bucket]) != bucket:
                return queue.top_key()
            self._bucket_expirations[bucket] = NOT_QUEUED
            # The cached bucket may be this one. An entry that is linked to a bucket outside the queue never fires.
            self._recent_ms = NONE_RECENT
            queue.pop()
        return -1

    def advance(self, now_ms: i64, limit: i64, fired: list[int]) -> i64:
        """Append to `fired` up to `limit` slots that are due at `now_ms`, in order of deadline. Returns how many.

        The work of one call is bounded (also by MOVES_MAX), even within a bucket. If more is due, `next_expiration_ms()
        <= now_ms` afterwards: call again. Slots that fired are unlinked.
        """
        assert now_ms >= self.now_ms, f"clock went back: now_ms={now_ms} wheel={self.now_ms}"
        self.now_ms = now_ms
        queue = self._queue
        fired_before: i64 = i64(len(fired))
        moves_left: i64 = MOVES_MAX
        room: i64 = limit
        while queue.size > 0 and queue.top_key() <= now_ms and room > 0 and moves_left > 0:
            # Buckets of level 1 are queued with `_base` added (see `_bucket_for`).
            bucket: i64 = queue.top_value() % self._base
            # Before the entries move: `_cascade` chooses their finer buckets by the clocks.
            self._set_clocks(queue.top_key())
            if bucket < self.wheel_size:
                moves_left -= self._fire(bucket, room if room < moves_left else moves_left, fired)
            else:
                moves_left -= self._cascade(bucket, moves_left)
            # Only entries that fired use up room. Cascading uses up moves, which bound a call in which nothing fires.
            room = limit - (i64(len(fired)) - fired_before)
            # A bucket that is not empty (the limit was reached within it) stays queued and is continued by the next
            # call.
            if i64(self._next[bucket]) == bucket:
                self._bucket_expirations[bucket] = NOT_QUEUED
                # The top is still this bucket. An entry within the first tick of a finer level goes to level 1, whose
                # buckets sort behind this one at equal times; all other buckets that `_cascade` queued are due later.
                queue.pop()
        self.moves_total += MOVES_MAX - moves_left
        return limit - room

    def bucket_of(self, slot: i64) -> tuple[int, int, int]:
        """Where a linked slot is: (level from 1, bucket index, bucket expiration). Walks the bucket: for views."""
        node: i64 = self._base + slot
        assert self._next[node] != UNLINKED, f"slot {slot} is not linked"
        # Sentinels are the nodes below `_base`, and each ring has exactly one.
        while node >= self._base:
            node = i64(self._next[node])
        return node // self.wheel_size + 1, node % self.wheel_size, self._bucket_expirations[node]

    def level_clock(self, level: i64) -> i64:
        """The clock of a level (from 1) that is in use: a multiple of its tick."""
        assert 1 <= level <= self.levels, f"level {level} is not in 1..{self.levels}"
        return self._level_clocks[level - 1]

    def bucket_count(self, level: i64, index: i64, counted_max: i64) -> i64:
        """How many slots a bucket of a level (from 1) holds; it is walked up to `counted_max`: for views."""
        assert 1 <= level <= self.levels, f"level {level} is not in 1..{self.levels}"
        assert 0 <= index < self.wheel_size, f"bucket {index} is not in 0..{self.wheel_size - 1}"
        bucket: i64 = (level - 1) * self.wheel_size + index
        held: i64 = 0
        node: i64 = i64(self._next[bucket])
        while node != bucket and held < counted_max:
            held += 1
            node = i64(self._next[node])
        return held

    def _link(self, node: i64, rounded: i64) -> bool:
        """Append a node to the bucket for its deadline; False if it is due by the wheel's clock."""
        # Compared with the clock of the wheel and not with `now_ms`, as in Kafka's TimingWheel.add.
        if rounded < self._level_clocks[0] + self.tick_ms:
            return False
        bucket = self._bucket_for(rounded)
        nexts = self._next
        prevs = self._prev
        tail = prevs[bucket]
        nexts[node] = i32(bucket)
        prevs[node] = tail
        nexts[i64(tail)] = i32(node)
        prevs[bucket] = i32(node)
        self.count += 1
        return True

    def _bucket_for(self, rounded: i64) -> i64:
        """The bucket for a deadline that is not before the clock; queued if it was not.

        Deadlines come in runs of equal values, so the last result is cached while the clocks do not move and its bucket
        is queued.
        """
        if rounded == self._recent_ms:
            return self._recent_bucket
        ticks = self._level_ticks
        clocks = self._level_clocks
        level: i64 = 0
        # The top level needs no test: no deadline is beyond it, and its interval would not fit in 64 bits.
        # The interval of a level is the tick of the next one.
        while level < self._top and rounded >= clocks[level] + ticks[level + 1]:
            level += 1
        if level >= self.levels:
            self.levels = level + 1
        tick: i64 = ticks[level]
        bucket: i64 = level * self.wheel_size + bucket_index(rounded, tick, self.wheel_size)
        # A queued bucket, even an empty one, already has the right time: no clock passes a queued bucket, and within
        # one interval each index occurs once.
        if self._bucket_expirations[bucket] == NOT_QUEUED:
            starts_ms: i64 = floor_to_tick(rounded, tick)
            self._bucket_expirations[bucket] = starts_ms
            # At equal times the heap returns the smaller value first: cascading levels from fine to coarse, then level
            # 1.
            self._queue.push(starts_ms, bucket + self._base if level == 0 else bucket)
        self._recent_ms = rounded
        self._recent_bucket = bucket
        return bucket

    def _unlink(self, node: i64) -> None:
        nexts = self._next
        prevs = self._prev
        after = nexts[node]
        before = prevs[node]
        nexts[i64(before)] = after
        prevs[i64(after)] = before
        # Only `_next` tells whether a node is linked; `_prev` keeps a stale value.
        nexts[node] = i32(UNLINKED)
        self.count -= 1

    def _fire(self, bucket: i64, room: i64, fired: list[int]) -> i64:
        """Take up to `room` entries from the head of a due bucket of level 1. Returns how many were taken."""
        nexts = self._next
        node: i64 = i64(nexts[bucket])
        taken: i64 = 0
        while taken < room and node != bucket:
            after: i64 = i64(nexts[node])
            nexts[node] = i32(UNLINKED)
            fired.append(node - self._base)
            node = after
            taken += 1
        # The ring is closed once, here; the entries that fired were not relinked one by one.
        nexts[bucket] = i32(node)
        self._prev[node] = i32(bucket)
        self.count -= taken
        return taken

    def _cascade(self, bucket: i64, moves_max: i64) -> i64:
        """Move entries from the tail of a due bucket to the heads of finer ones. Returns how many were moved.

        The clocks are at the bucket's time, so all entries go to a finer level, never back into this bucket: the loop
        ends.
        """
        # From tail to head, each to the front: they keep their order, and precede entries that were added to the finer
        # bucket directly, which were registered later.
        nexts = self._next
        prevs = self._prev
        node: i64 = i64(prevs[bucket])
        moves: i64 = 0
        while moves < moves_max and node != bucket:
            before: i64 = i64(prevs[node])
            finer = self._bucket_for(self._deadlines[node - self._base])
            head = nexts[finer]
            nexts[node] = head
            prevs[node] = i32(finer)
            prevs[i64(head)] = i32(node)
            nexts[finer] = i32(node)
            node = before
            moves += 1
        prevs[bucket] = i32(node)
        nexts[node] = i32(bucket)
        return moves

    def _set_clocks(self, time_ms: i64) -> None:
        """Move each level's clock to a bucket's time, floored to its tick, up to the first level already there."""
        # The bucket for a deadline depends on the clocks.
        self._recent_ms = NONE_RECENT
        ticks = self._level_ticks
        clocks = self._level_clocks
        level: i64 = 0
        # Coarser clocks are floored to multiples of the finer ticks, so above a level that has not reached its next
        # tick none has.
        while level <= self._top and time_ms >= clocks[level] + ticks[level]:
            clocks[level] = floor_to_tick(time_ms, ticks[level])
            level += 1
