"""Byte positions of offsets, used to compute how many bytes a fetch can read.

An index of (offset, segment base offset, byte position in the segment), with one entry for each append that reported
its position. Segments follow each other, so every offset also has a *reach*: a single number that rises with the offset
through all segments and grows by the bytes in between. Fetches wait for a reach; within a segment, a difference of
reaches is a number of bytes. The reach of an entry is below OFFSET_MAX, so that a fetch can add to it in 64 bits.

Between two entries, and above the last one, each offset counts as one byte, because every record has at least one. So
bytes are counted late if they are reported late, but never early. A partition that never reported a position has no
entries, and its reach is the offset itself.

The index is bounded: when it is full, every second entry of its older half is dropped. The oldest entry is kept.
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from purgatory.engine.codes import OFFSET_MAX

ENTRIES_MAX: Final = 512


class PositionIndex:
    """Byte positions of one partition's log."""

    def __init__(self) -> None:
        self.offsets: vec[i64] = vec[i64]()
        self.segments: vec[i64] = vec[i64]()
        self.positions: vec[i64] = vec[i64]()
        self.reaches: vec[i64] = vec[i64]()
        self._found: i64 = 0
        """Index of the last entry found: the next search usually ends nearby."""

    def __len__(self) -> int:
        return len(self.offsets)

    def last_segment(self) -> i64:
        """Base offset of the newest segment; 0 if none was reported."""
        count: i64 = len(self.offsets)
        return self.segments[count - 1] if count else 0

    def fault(self, offset: i64, segment: i64, position: i64) -> str:
        """Why an append at this position is impossible, or an empty string. -1: not reported."""
        count: i64 = len(self.offsets)
        newest: i64 = self.last_segment()
        if segment >= 0 and segment > offset:
            return f"segment_base_offset {segment} is above the log end offset {offset}"
        if count and segment >= 0 and segment < newest:
            return f"segment_base_offset {segment} is below {newest}, the newest segment"
        if count and segment > newest and segment < self.offsets[count - 1]:
            return f"segment_base_offset {segment} is below {self.offsets[count - 1]}, which lies in segment {newest}"
        if count and position >= 0 and (segment < 0 or segment == newest) and position < self.positions[count - 1]:
            return f"byte_position {position} is below {self.positions[count - 1]}, that of the append before"
        if (segment >= 0 or position >= 0) and self._reach_after(offset, segment, position) >= OFFSET_MAX:
            return f"the bytes of all segments up to byte_position {position} are not below {OFFSET_MAX}"
        return ""

    def _reach_after(self, offset: i64, segment: i64, position: i64) -> i64:
        """The reach of `offset` once `add` has recorded it. Two numbers below OFFSET_MAX are added at most."""
        count: i64 = len(self.offsets)
        start: i64 = segment if segment >= 0 else 0
        before: i64 = 0
        reach: i64 = start
        if count and segment > self.segments[count - 1]:
            reach = self.reach(segment)
        elif count:
            start, before, reach = self.offsets[count - 1], self.positions[count - 1], self.reaches[count - 1]
        if offset <= start:
            return reach
        return reach + (position - before if position - before > offset - start else offset - start)

    def add(self, offset: i64, segment: i64, position: i64) -> None:
        """Record that the log end `offset` is at `position` of `segment` (-1: not reported). `fault` must be empty."""
        count: i64 = len(self.offsets)
        if position < 0 and segment < 0:
            return
        if segment < 0:
            segment = self.last_segment()
        # The start of a segment is an entry too, so that offsets in it below the first append have a position.
        if not count:
            self._push(segment, segment, 0, segment)
        elif segment > self.segments[count - 1]:
            # The reach is computed before `_push`, which may drop the entry that it is computed from.
            self._push(segment, segment, 0, self.reach(segment))
        count = len(self.offsets)
        ahead: i64 = offset - self.offsets[count - 1]
        # After a roll the entry for the start of the segment is at this offset already.
        if ahead <= 0:
            return
        # Count at least one byte per record, so that reaches rise with offsets whatever the positions are.
        grown: i64 = position - self.positions[count - 1]
        if grown < ahead:
            grown = ahead
        self._push(offset, segment, self.positions[count - 1] + grown, self.reaches[count - 1] + grown)

    def _push(self, offset: i64, segment: i64, position: i64, reach: i64) -> None:
        count: i64 = len(self.offsets)
        # Offsets must be strictly ascending for the search below; a segment that starts at the log end replaces that
        # entry.
        if count and self.offsets[count - 1] >= offset:
            self.truncate(offset - 1)
        elif count >= ENTRIES_MAX:
            self.thin()
        self.offsets = append(self.offsets, offset)
        self.segments = append(self.segments, segment)
        self.positions = append(self.positions, position)
        self.reaches = append(self.reaches, reach)

    def thin(self) -> None:
        """Drop every second entry of the older half.

        Fetches wait near the end of the log, so the newer half stays exact. In the older half, offsets between two
        entries then count one byte each, which is late but never early. The first entry has an even index, so it is
        kept.
        """
        kept = PositionIndex()
        half: i64 = len(self.offsets) // 2
        place: i64 = 0
        while place < len(self.offsets):
            if place >= half or place % 2 == 0:
                kept.offsets = append(kept.offsets, self.offsets[place])
                kept.segments = append(kept.segments, self.segments[place])
                kept.positions = append(kept.positions, self.positions[place])
                kept.reaches = append(kept.reaches, self.reaches[place])
            place += 1
        self._take(kept)

    def truncate(self, log_end_offset: i64) -> None:
        """Drop the entries above the new end of the log."""
        count: i64 = len(self.offsets)
        keep: i64 = count
        while keep and self.offsets[keep - 1] > log_end_offset:
            keep -= 1
        if keep == count:
            return
        self.offsets = self.offsets[:keep]
        self.segments = self.segments[:keep]
        self.positions = self.positions[:keep]
        self.reaches = self.reaches[:keep]

    def _take(self, other: "PositionIndex") -> None:
        self.offsets = other.offsets
        self.segments = other.segments
        self.positions = other.positions
        self.reaches = other.reaches

    def _floor(self, offset: i64) -> i64:
        """Index of the last entry at or below `offset`; -1 if there is none."""
        offsets = self.offsets
        low: i64 = -1
        high: i64 = len(offsets)
        if high and offsets[high - 1] <= offset:
            return high - 1
        # May be out of date after a truncation or thinning; it is used only if its neighbours confirm it.
        near = self._found
        if near < high - 1 and offsets[near] <= offset < offsets[near + 1]:
            return near
        # Invariant: `offsets[low] <= offset < offsets[high]`, with -1 and the length as open ends.
        while high - low > 1:
            middle: i64 = (low + high) // 2
            if offsets[middle] <= offset:
                low = middle
            else:
                high = middle
        if low >= 0:
            self._found = low
        return low

    def reach(self, offset: i64) -> i64:
        """The reach of `offset`; -1 if it is below all reported offsets (or is itself -1)."""
        if not len(self.offsets) or offset < 0:
            return offset
        place: i64 = self._floor(offset)
        if place < 0:
            return -1
        return self.reaches[place] + offset - self.offsets[place]

    def segment(self, offset: i64) -> i64:
        """Base offset of the segment that contains `offset`; -1 if it is below all reported offsets."""
        if not len(self.offsets):
            return 0
        place: i64 = self._floor(offset)
        return self.segments[place] if place >= 0 else -1
