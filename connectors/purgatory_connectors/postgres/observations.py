"""The data returned by one query of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_HEADER_BYTES: Final = 24
"""Header size of a page (SizeOfXLogShortPHD)."""
_SEGMENT_HEADER_BYTES: Final = 40
"""Header size of the first page of a segment (SizeOfXLogLongPHD)."""


class FoundReplica(NamedTuple):
    """A replica as listed by its primary."""

    application_name: str
    position: int


@dataclass(slots=True)
class ServerObservation:
    """One reading of a server.

    Attributes:
        system_id: System identifier, assigned when the cluster was created and shared by its replicas.
        timeline: The current timeline of the server.
        is_primary: The server is not in recovery.
        position: Replayed position of a replica, flushed position of a primary; never before a page header.
        forks: End of each ancestor timeline; None if the server does not permit reading them.
        aliases: Names under which its primary may list it.
        found: Replicas that stream from this primary; None if the server was not asked.
        slots: The confirmed position of each logical slot; None if the server was not asked.
        invalidated_slots: Why each invalidated slot can deliver nothing more ("wal_removed"). Such a slot still exists.
    """

    system_id: int
    timeline: int
    is_primary: bool
    position: int
    forks: Mapping[int, int] | None = None
    aliases: frozenset[str] = field(default_factory=frozenset)
    found: tuple[FoundReplica, ...] | None = None
    slots: Mapping[str, int] | None = None
    invalidated_slots: Mapping[str, str] = field(default_factory=dict)


class LogPages(NamedTuple):
    """Page and segment size of a server's log, in bytes.

    Each page begins with a header that contains no record. A server that has replayed a whole page reports the end of
    that page; a server that inserts reports the position of its next record, after the next page's header. Without the
    correction here, a wait for the second position on the first server would hang until the next write. This always
    happens after pg_switch_wal(), which archive_timeout also triggers.
    """

    page_bytes: int
    segment_bytes: int

    def past_header(self, position: int) -> int:
        """The position of the next record after `position`: `position` itself, or the end of the page header there."""
        if position <= 0 or position % self.page_bytes:
            return position
        return position + (_HEADER_BYTES if position % self.segment_bytes else _SEGMENT_HEADER_BYTES)
