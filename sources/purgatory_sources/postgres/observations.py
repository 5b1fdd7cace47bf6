"""What one look at a server shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class FoundReplica(NamedTuple):
    """A replica as its primary sees it."""

    application_name: str
    position: int


@dataclass(slots=True)
class ServerObservation:
    """One answer of a server.

    Attributes:
        system_id: Of the database system, given to it when it was made; replicas share it.
        timeline: The one whose history it is on.
        is_primary: It is not in recovery.
        position: What it has: replayed on a replica, flushed on a primary. Behind a page's header, never before one.
        forks: Where its timeline's ancestors were left; None if it may not tell.
        aliases: What its primary may call it.
        found: The replicas that a primary sends its log to; None if it was not asked.
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
