"""Where records can begin in the write-ahead log.

A page begins with a header, which no record is in. A server that has replayed all of a page tells the page's end, but
one that inserts tells where its next record goes: behind the next page's header. A wait for the second by the first
would hang until somebody writes again: always after pg_switch_wal(), which archive_timeout does by itself.
"""

from typing import Final, NamedTuple

_HEADER_BYTES: Final = 24
"""Of a page (SizeOfXLogShortPHD)."""
_SEGMENT_HEADER_BYTES: Final = 40
"""Of a segment's first page (SizeOfXLogLongPHD)."""


class LogPages(NamedTuple):
    """How a server divides its log, in bytes."""

    page_bytes: int
    segment_bytes: int

    def past_header(self, position: int) -> int:
        """Where the next record goes, when all below `position` is there: `position`, or behind a page's header."""
        if position <= 0 or position % self.page_bytes:
            return position
        return position + (_HEADER_BYTES if position % self.segment_bytes else _SEGMENT_HEADER_BYTES)
