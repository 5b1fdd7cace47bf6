"""A partition of the simulated cluster, and its events."""

from collections import deque
from typing import Any, Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, ReplicaSets
from tests.pipeline.history.plan import Topic

BROKERS: Final = 4
"""Replica ids 1 to 4. Each broker is a session; each partition has three replicas."""

ABSENT: Final = {
    "types": -1, "offsets": -1, "leader_epochs": -1, "replica_ids": -1, "byte_positions": -1,
    "segment_base_offsets": -1, "flags": 0, "replica_sets": None,
}  # fmt: skip
"""Columns of an event and the values that mean: not given."""


def event_batch(events: list[dict[str, Any]]) -> EventBatch:
    """Puts events into columns; a column that no event has is left out."""
    names = list(dict.fromkeys(event["partition"] for event in events))
    used = {name: value for name, value in ABSENT.items() if any(name in event for event in events)}
    columns: dict[str, Any] = {name: [event.get(name, value) for event in events] for name, value in used.items()}
    indexes = [names.index(event["partition"]) for event in events]
    return EventBatch(partitions=names, item_indexes=indexes, **columns)


class Partition:
    """Replicas and log of a partition, and the produces that wait for its high watermark."""

    def __init__(self, name: tuple[str, int], topic: Topic, place: int, weight: float, base: int) -> None:
        self.name: Final = name
        self.topic: Final = topic
        self.weight: Final = weight
        self.leader = place % BROKERS + 1
        self.followers = [replica for replica in range(1, BROKERS + 1) if replica != self.leader]
        del self.followers[place // BROKERS % 3]
        self.in_sync = {self.leader, *self.followers}
        self.away: set[int] = set()
        self.epoch = 0
        self.is_led = True
        self.is_steady = True
        """Whether the leader stays the same for the whole run."""
        self.base: Final = base
        self.end = self.high_watermark = base
        self.fetched = dict.fromkeys(self.followers, base)
        """The log end that each follower received by its last fetch, and reports with its next one."""
        self.reported = dict(self.fetched)
        """The same, as last reported."""
        self.waiting: deque[tuple[int, list[int]]] = deque()
        """Offsets, rising, and their produces: [registered at (ms), partitions that are not reached yet]."""

    def is_of(self, session: int) -> bool:
        return self.is_led and self.leader == session + 1

    def toggle_away(self, replica_id: int, _now_ms: int) -> None:
        """A replica stops fetching, or fetches again."""
        self.away ^= {replica_id}

    def event(self, event_type: int, **values: object) -> dict[str, Any]:
        """An event in the partition's current epoch; `values` by column."""
        return {"types": event_type, "partition": self.name, "leader_epochs": self.epoch, **values}

    def leadership(self) -> dict[str, Any]:
        replicas = ReplicaSets(replicas=sorted({self.leader, *self.followers}), leader_id=self.leader)
        return self.event(codes.LEADERSHIP, flags=int(self.is_led), replica_sets=replicas)

    def in_sync_replicas(self) -> dict[str, Any]:
        replicas = ReplicaSets(in_sync=sorted(self.in_sync), leader_id=self.leader, min_in_sync_replicas=2)
        return self.event(codes.IN_SYNC_REPLICAS, replica_sets=replicas)

    def append_event(self) -> dict[str, Any]:
        """The log end. Records of a topic have the same size, and the segment is never rolled."""
        size = (self.end - self.base) * self.topic.record_bytes
        return self.event(codes.LEADER_APPEND, offsets=self.end, byte_positions=size, segment_base_offsets=self.base)

    def first_events(self) -> list[dict[str, Any]]:
        """The state at the start of a run: all replicas have the same log."""
        progress = [
            self.event(codes.FOLLOWER_PROGRESS, replica_ids=replica, offsets=self.base) for replica in self.followers
        ]
        return [self.leadership(), self.in_sync_replicas(), self.append_event(), *progress]
