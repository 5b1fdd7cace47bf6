"""Messages between a source and the publisher: observations, published marks, health reports, ends of logs."""

from typing import NamedTuple, TypeAlias

from purgatory_client.sources.source_link import MarkEnd, SourceState, StaleMarks

__all__ = ["End", "MarkName", "Observation", "PublishedMark", "SeenReplicas", "SourceState", "StaleMarks"]

End: TypeAlias = MarkEnd
"""The end of a partition. If `leader_epoch` is missing, the publisher adds the epoch of the mark."""

MarkName = tuple[str, int]
"""(topic, partition) as on the wire: ("kafka/billing/orders", 3), ("pg/main/all", 0)."""


class EndsFound(NamedTuple):
    """The answer to a question about ends: `error` says why there are none. `as_of_ms` is the time of the question, if
    there was one and the source can look it up.
    """

    ends: list[End]
    error: str
    as_of_ms: int | None = None


class SeenReplicas(NamedTuple):
    """The replicas of a partition, for display; they move no mark. The ids of the assigned and of the in-sync replicas
    are in ascending order.
    """

    leader_id: int
    replica_ids: tuple[int, ...]
    in_sync_ids: tuple[int, ...]


class Observation(NamedTuple):
    """One reading of one mark.

    Observations of one mark must be passed in the order in which they were read. Only older readings of the same
    lineage may arrive late.

    Attributes:
        topic: As on the wire, with the source's prefix.
        partition: 0 if the system has no partitions.
        offset: The position; None: the mark no longer exists (the group's offset, the topic or the server was removed).
        identity: Opaque identity of the lineage. A change is a break, even if the offset is higher. An identity is
            never reused. Empty: unknown for this reading; the offset decides.
        is_set_back_to: The source knows that a lower offset is a break, for example because a group was reset. Without
            this flag, a lower offset in the same lineage is an older reading and is ignored.
    """

    topic: str
    partition: int
    offset: int | None
    identity: str = ""
    is_set_back_to: bool = False


class PublishedMark(NamedTuple):
    """A mark as published to the daemons: the lowest epoch and offset at any of them."""

    epoch: int
    offset: int
