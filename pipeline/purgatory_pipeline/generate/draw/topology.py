"""Brokers, partitions and their leaders: where partitions are, and how leaders change during a run.

A *log* is a partition under one leader. A partition whose leader changes has a second log, which begins where the new
leader's copy ended: what only the old leader had is truncated.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from purgatory_pipeline.generate.history_plan import BROKERS, RunPlan, Topic

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

HOTNESS: Final = 0.8
"""Exponent of the Zipf law by which the partitions of a topic share its load."""

LEADER_CHANGES: Final = 2
ABSENCES: Final = 2
"""Both in each run, on as many partitions, if there are that many."""

FOR_EVER_MS: Final = 2**62


@dataclass(frozen=True)
class Topology:
    """All partitions by index: names, topics, first leaders and followers, and shares of the load."""

    topics: tuple[Topic, ...]
    names: list[tuple[str, int]]
    topic_of: Ints
    leader_of: Ints
    followers_of: Ints  # two columns
    load: Floats  # adds up to 1


@dataclass(frozen=True)
class Absence:
    """A follower that does not fetch for a while, and is out of the in-sync replicas until it has caught up."""

    follower: int
    away_ms: int
    left_ms: int
    """When it is fenced, and leaves the in-sync replicas."""
    returns_ms: int
    """When it fetches again."""


@dataclass(frozen=True)
class Log:
    """A partition under one leader, from `start_ms` until just before `end_ms`."""

    index: int
    partition: int
    leader: int
    followers: tuple[int, int]
    epoch: int
    start_ms: int
    end_ms: int
    before: int = -1
    """The previous leader's log; -1: it is the partition's first."""
    returns_ms: int = 0
    """When the former leader fetches again, as a follower."""
    absence: Absence | None = None


@dataclass(frozen=True)
class LeaderChange:
    """A partition that changes its leader: nobody leads from `resigned_ms` until `elected_ms`."""

    partition: int
    old_log: int
    new_log: int
    resigned_ms: int
    elected_ms: int


def place_partitions(topics: tuple[Topic, ...]) -> Topology:
    """Leaders and followers in turn over the brokers, as Kafka places replicas."""
    names = [(topic.name, number) for topic in topics for number in range(topic.partitions)]
    place = np.arange(len(names), dtype=np.int64)
    leader = place % BROKERS
    second = (leader + 1 + place // BROKERS % (BROKERS - 1)) % BROKERS
    third = (second + 1) % BROKERS
    third = np.where(third == leader, (third + 1) % BROKERS, third)
    weights = [1 / np.arange(1, topic.partitions + 1) ** HOTNESS for topic in topics]
    load = np.concatenate([topic.share * own / own.sum() for topic, own in zip(topics, weights, strict=True)])
    return Topology(
        topics=topics,
        names=names,
        topic_of=np.repeat(np.arange(len(topics)), [topic.partitions for topic in topics]),
        leader_of=leader + 1,
        followers_of=np.stack([second, third], axis=1) + 1,
        load=load / load.sum(),
    )


def draw_logs(cluster: Topology, run: RunPlan, rng: np.random.Generator) -> tuple[list[Log], list[LeaderChange]]:
    """The logs of a run: one for each partition in order, then those after a leader change."""
    count = len(cluster.names)
    chosen = rng.choice(count, size=min(LEADER_CHANGES + ABSENCES, count), replace=False).tolist()
    changes: list[LeaderChange] = []
    later: list[Log] = []
    for partition in chosen[:LEADER_CHANGES]:
        resigned_ms = int(rng.integers(run.life_ms * 3 // 10, run.life_ms * 6 // 10))
        elected_ms = resigned_ms + int(rng.integers(40, 400))
        leader, (one, other) = int(cluster.leader_of[partition]), cluster.followers_of[partition].tolist()
        elected, follower = (one, other) if rng.random() < 0.5 else (other, one)
        new = Log(
            index=count + len(later),
            partition=partition,
            leader=elected,
            followers=(follower, leader),
            epoch=1,
            start_ms=elected_ms,
            end_ms=FOR_EVER_MS,
            before=partition,
            returns_ms=elected_ms + int(rng.integers(50, 1_500)),
        )
        later.append(new)
        changes.append(LeaderChange(partition, partition, new.index, resigned_ms, elected_ms))
    resigned = {change.partition: change.resigned_ms for change in changes}
    absences = {partition: _draw_absence(cluster, run, partition, rng) for partition in chosen[LEADER_CHANGES:]}
    leaders, followers = cluster.leader_of.tolist(), [(one, other) for one, other in cluster.followers_of.tolist()]
    first = [
        Log(
            index=partition,
            partition=partition,
            leader=leaders[partition],
            followers=followers[partition],
            epoch=0,
            start_ms=0,
            end_ms=resigned.get(partition, FOR_EVER_MS),
            absence=absences.get(partition),
        )
        for partition in range(count)
    ]
    return first + later, changes


def _draw_absence(cluster: Topology, run: RunPlan, partition: int, rng: np.random.Generator) -> Absence:
    """One follower of a partition, not the slow replica, goes away for a few seconds."""
    slow = run.plan.slow_replica
    followers = [
        replica for replica in cluster.followers_of[partition].tolist() if slow is None or replica != slow.replica_id
    ]
    away_ms = int(rng.integers(run.life_ms * 2 // 10, run.life_ms * 5 // 10))
    left_ms = away_ms + int(rng.integers(400, 900))
    return Absence(int(rng.choice(followers)), away_ms, left_ms, left_ms + int(rng.integers(500, 3_000)))
