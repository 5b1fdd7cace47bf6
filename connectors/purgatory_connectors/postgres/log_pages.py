"""Positions in the write-ahead log at which records can begin.

Each page begins with a header that contains no record. A server that has replayed a whole page reports the end of that
page; a server that inserts reports the position of its next record, after the next page's header. Without the
correction here, a wait for the second position on the first server would hang until the next write. This always happens
after pg_switch_wal(), which archive_timeout also triggers.
"""

from typing import Final, NamedTuple

_HEADER_BYTES: Final = 24
"""Header size of a page (SizeOfXLogShortPHD)."""
_SEGMENT_HEADER_BYTES: Final = 40
"""Header size of the first page of a segment (SizeOfXLogLongPHD)."""


class LogPages(NamedTuple):
    """Page and segment size of a server's log, in bytes."""

    page_bytes: int
    segment_bytes: int

    def past_header(self, position: int) -> int:
        """The position of the next record after `position`: `position` itself, or the end of the page header there."""
        if position <= 0 or position % self.page_bytes:
            return position
        return position + (_HEADER_BYTES if position % self.segment_bytes else _SEGMENT_HEADER_BYTES)
