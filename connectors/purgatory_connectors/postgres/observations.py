"""The data returned by one query of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class FoundReplica(NamedTuple):
    """A replica as listed by its primary."""

    application_name: str
    position: int


class Unseen(NamedTuple):
    """A server could not be read."""

    reason: str


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
