"""What a source says of itself, and answers when somebody asks where logs end."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class SourceState(IntEnum):
    """What a source can do just now; numbers as on the wire."""

    LOADING = 1
    LIVE = 2
    BEHIND = 3
    HELD = 4
    BLIND = 5
    REFUSED = 6


class StaleMarks(NamedTuple):
    """Marks that a source cannot see.

    Attributes:
        topic_prefix: The partitions of all topics that start with this; empty: all of the source's.
        exact: Only those of the topic of just this name.
        partitions: Only these of it; none: all.
        stale_ms: For how long they have not been seen, when this is reported; the feed adds what passes after.
        reason: Why, in a few words for people.
    """

    topic_prefix: str = ""
    exact: bool = False
    partitions: Sequence[int] = ()
    stale_ms: int = 0
    reason: str = ""


class End(NamedTuple):
    """Where a partition ends: the mark that has all of it. Without `leader_epoch` the feed gives its mark's."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None


class ToldMark(NamedTuple):
    """What the daemons know of a mark: the lowest epoch and offset among them. An offset of -1: not known to all."""

    epoch: int
    offset: int
