"""What a source hands over: where a mark was seen to stand."""

from typing import NamedTuple

MarkName = tuple[str, int]
"""(topic, partition) as on the wire: ("kafka/billing/orders", 3), ("pg/main/all", 0)."""


class SeenReplicas(NamedTuple):
    """Who keeps a partition: its leader's id, the ids of all that are assigned, and of those that are in sync, each in
    ascending order. It is told for people to see and moves no mark.
    """

    leader_id: int
    replica_ids: tuple[int, ...]
    in_sync_ids: tuple[int, ...]


class Observation(NamedTuple):
    """What was seen of one mark. Those of one name are handed over in the order in which they were read, but for older
    ones of the same lineage, which may come late.

    Attributes:
        topic: As on the wire, with the source's prefix.
        partition: 0 where there are none.
        offset: Where it stands; None: it is gone (the group's offset, the topic, the server).
        identity: Of its lineage, opaque. A change is a break even where the offset is higher; an identity never comes
            back. Empty: not known this time, and offsets decide.
        is_set_back_to: The source knows that a lower offset is a break, as when a group was set back. Without it, and
            in the same lineage, a lower offset is an older reading, and is left out.
    """

    topic: str
    partition: int
    offset: int | None
    identity: str = ""
    is_set_back_to: bool = False
