"""Byte positions of offsets, found by walking a list."""

from typing import NamedTuple

INDEX_ENTRIES_MAX = 512


class Entry(NamedTuple):
    """The position of an offset: its segment, its byte in it, and its reach (bytes counted over all segments)."""

    offset: int
    segment: int
    position: int
    reach: int


class Index:
    """Byte positions of one log, in order of offsets."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def entry_at(self, offset: int) -> Entry | None:
        """The last entry at or below an offset."""
        below = [entry for entry in self.entries if entry.offset <= offset]
        return below[-1] if below else None

    def reach(self, offset: int) -> int:
        """The reach of an offset in bytes; above an entry each offset counts one; -1: it is below all entries."""
        if not self.entries or offset < 0:
            return offset
        entry = self.entry_at(offset)
        return -1 if entry is None else entry.reach + offset - entry.offset

    def segment(self, offset: int) -> int:
        """Base offset of the segment of an offset; 0 if no positions are known; -1: it is below all entries."""
        if not self.entries:
            return 0
        entry = self.entry_at(offset)
        return -1 if entry is None else entry.segment

    def newest_segment(self) -> int:
        """Base offset of the newest segment."""
        return self.entries[-1].segment if self.entries else 0

    def add(self, offset: int, segment: int, position: int) -> None:
        """Each segment begins at byte 0, and each record has at least one byte, whether or not it was reported."""
        if segment < 0:
            segment = self.newest_segment()
        if not self.entries:
            self.push(Entry(segment, segment, 0, segment))
        elif segment > self.entries[-1].segment:
            self.push(Entry(segment, segment, 0, self.reach(segment)))
        last = self.entries[-1]
        if offset > last.offset:
            grown = max(position - last.position, offset - last.offset)
            self.push(Entry(offset, segment, last.position + grown, last.reach + grown))

    def push(self, entry: Entry) -> None:
        """Add an entry; if there are too many, drop every second one of the older half."""
        below = [known for known in self.entries if known.offset < entry.offset]
        if len(below) == len(self.entries) >= INDEX_ENTRIES_MAX:
            half = len(below) // 2
            below = [known for i, known in enumerate(below) if i >= half or i % 2 == 0]
        self.entries = [*below, entry]

    def truncate(self, offset: int) -> None:
        self.entries = [entry for entry in self.entries if entry.offset <= offset]
