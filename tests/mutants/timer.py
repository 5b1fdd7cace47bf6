"""Mutants of the timer: the wheel's arithmetic and rings, and the heap under it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "deadline rounded down to a tick",
        "wheel",
        "return (deadline_ms + tick_ms - 1) // tick_ms * tick_ms",
        "return deadline_ms // tick_ms * tick_ms",
    ),
    Mutant(
        "deadline on a tick rounded up to the next",
        "wheel",
        "return (deadline_ms + tick_ms - 1) // tick_ms * tick_ms",
        "return (deadline_ms + tick_ms) // tick_ms * tick_ms",
    ),
    Mutant(
        "linked one bucket too late",
        "wheel",
        "+ bucket_index(rounded, tick, self.wheel_size)",
        "+ bucket_index(rounded + tick, tick, self.wheel_size)",
    ),
    Mutant(
        "a bucket is due a tick late",
        "wheel",
        "starts_ms: i64 = floor_to_tick(rounded, tick)",
        "starts_ms: i64 = floor_to_tick(rounded, tick) + tick",
    ),
    Mutant(
        "a bucket is due a tick early",
        "wheel",
        "starts_ms: i64 = floor_to_tick(rounded, tick)",
        "starts_ms: i64 = floor_to_tick(rounded, tick) - tick",
    ),
    Mutant(
        "the last bucket of a level is never used",
        "wheel",
        "return deadline_ms // tick_ms % wheel_size",
        "return deadline_ms // tick_ms % (wheel_size - 1)",
    ),
    Mutant(
        "the end of a level's interval belongs to it",
        "wheel",
        "rounded >= clocks[level] + ticks[level + 1]",
        "rounded > clocks[level] + ticks[level + 1]",
    ),
    Mutant("the top level is never used", "wheel", "while level < self._top and", "while level < self._top - 1 and"),
    Mutant("one level too few", "wheel", "    levels: i64 = 1\n", "    levels: i64 = 0\n"),
    Mutant(
        "due a tick too early when it is added",
        "wheel",
        "if rounded < self._level_clocks[0] + self.tick_ms:",
        "if rounded <= self._level_clocks[0] + self.tick_ms:",
    ),
    Mutant(
        "a coarse bucket fires instead of cascading",
        "wheel",
        "if bucket < self.wheel_size:",
        "if bucket < 2 * self.wheel_size:",
    ),
    Mutant("fires a millisecond late", "wheel", "queue.top_key() <= now_ms and", "queue.top_key() < now_ms and"),
    Mutant(
        "unlink leaves the one after pointing back at it",
        "wheel",
        "        prevs[i64(after)] = before\n",
        "",
    ),
    Mutant(
        "unlink leaves the slot marked as linked",
        "wheel",
        "        nexts[node] = i32(UNLINKED)\n        self.count -= 1\n",
        "        self.count -= 1\n",
    ),
    Mutant(
        "what has fired stays marked as linked",
        "wheel",
        "            nexts[node] = i32(UNLINKED)\n            fired",
        "            fired",
    ),
    Mutant("what has fired is still counted", "wheel", "        self.count -= taken\n", ""),
    Mutant(
        "a bucket that fired in part begins where it began",
        "wheel",
        "        nexts[bucket] = i32(node)\n        self._prev[node]",
        "        self._prev[node]",
    ),
    Mutant(
        "a bucket that cascaded in part ends where it ended",
        "wheel",
        "        prevs[bucket] = i32(node)\n        nexts[node] = i32(bucket)\n        return moves",
        "        nexts[node] = i32(bucket)\n        return moves",
    ),
    Mutant(
        "the bucket of before is taken although the clocks have moved",
        "wheel",
        "        self._recent_ms = NONE_RECENT\n        ticks",
        "        ticks",
    ),
    Mutant(
        "the bucket of before is taken although it was dropped",
        "wheel",
        "            self._recent_ms = NONE_RECENT\n            queue.pop()",
        "            queue.pop()",
    ),
    Mutant(
        "wrong bucket with a tick of 1",
        "wheel",
        "return deadline_ms % wheel_size",
        "return deadline_ms % (wheel_size - 1)",
    ),
    Mutant("an unlinked slot is still counted", "wheel", "        self.count -= 1\n", ""),
    Mutant(
        "a second deadline does not unlink the first",
        "wheel",
        "            self._unlink(self._base + slot)\n        rounded",
        "            self.count -= 1\n        rounded",
    ),
    Mutant(
        "an emptied bucket is never queued again",
        "wheel",
        "                self._bucket_expirations[bucket] = NOT_QUEUED\n                queue.pop()\n        return",
        "                queue.pop()\n        return",
    ),
    Mutant(
        "only the finest level's clock moves",
        "wheel",
        "while level <= self._top and time_ms",
        "while level < 1 and time_ms",
    ),
    Mutant(
        "coarse clocks stand between their ticks",
        "wheel",
        "clocks[level] = floor_to_tick(time_ms, ticks[level])",
        "clocks[level] = time_ms",
    ),
    Mutant(
        "the limit of one call is ignored within a bucket",
        "wheel",
        "self._fire(bucket, room if room < moves_left else moves_left, fired)",
        "self._fire(bucket, moves_left, fired)",
    ),
    Mutant(
        "moves are not bounded",
        "wheel",
        "moves_left -= self._cascade(bucket, moves_left)",
        "self._cascade(bucket, 2**62)",
    ),
    Mutant(
        "what cascades goes behind what was added later",
        "wheel",
        "            head = nexts[finer]\n            nexts[node] = head\n            prevs[node] = i32(finer)\n"
        "            prevs[i64(head)] = i32(node)\n            nexts[finer] = i32(node)\n",
        "            head = prevs[finer]\n            prevs[node] = head\n            nexts[node] = i32(finer)\n"
        "            nexts[i64(head)] = i32(node)\n            prevs[finer] = i32(node)\n",
    ),
    Mutant(
        "level 1 fires before coarser buckets of the same time have cascaded",
        "wheel",
        "bucket + self._base if level == 0 else bucket)",
        "bucket)",
    ),
    Mutant(
        "wakes for buckets that were emptied",
        "wheel",
        "            if i64(self._next[bucket]) != bucket:\n                return queue.top_key()\n",
        "            if self.count > 0:\n                return queue.top_key()\n",
    ),
    Mutant("ring order reversed", "wheel", "        tail = prevs[bucket]\n", "        tail = bucket\n"),
    Mutant(
        "far deadlines are not clamped",
        "wheel",
        "if deadline_ms >> DEADLINE_BITS > 0:",
        "if deadline_ms >> DEADLINE_BITS > 1:",
    ),
    Mutant("the clock may go back", "wheel", 'assert now_ms >= self.now_ms, f"clock', 'assert True, f"clock'),
    Mutant(
        "equal keys come out in order of insertion",
        "heap",
        "(keys[parent] == key and values[parent] <= value)",
        "keys[parent] == key",
    ),
    Mutant("sifting down misses the last right child", "heap", "if right < size and (", "if right + 1 < size and ("),
    Mutant("sifting down stops a level too early", "heap", "while child < size:", "while child + 1 < size:"),
    Mutant("sifting up compares with the wrong parent", "heap", "(hole - 1) >> 1", "hole >> 1"),
    Mutant("an emptied heap keeps its memory", "heap", "> SHRINK_ABOVE:", "> 2**40:"),
)
