"""What each operation asks for: timeouts, offsets, leader epochs, bytes; and the log starts that deletions move.

Consumers read at the current high watermark (and so wait for it to move) or a little behind it; followers read at the
log end.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.engine.codes import DELETE_RECORDS, FETCH, PRODUCE, READ_COMMITTED, READ_UNCOMMITTED, SIGNAL
from purgatory_pipeline.generate.draw.arrivals import Arrivals, pick
from purgatory_pipeline.generate.draw.log_marks import Appends, LogMarks, StepFunctions
from purgatory_pipeline.generate.draw.topology import Flags, Ints, Log, Topology

FOLLOWER_SHARE: Final = 0.4
CAUGHT_UP_SHARE: Final = 0.65
BEHIND_MS_MAX: Final = 1_000
RETENTION_MS: Final = 3_000
"""Older records may be deleted; consumers are never that far behind."""

READ_COMMITTED_SHARE: Final = 0.2
FROM_NOW_SHARE: Final = 0.8
ANY_SHARE: Final = 0.5
MIN_BYTES: Final = ((1, 0.60), (10_000, 0.30), (250_000, 0.10))
FETCH_TIMEOUTS_MS: Final = ((500, 0.75), (100, 0.15), (5_000, 0.10))
SIGNAL_TIMEOUTS_MS: Final = ((10_000, 0.7), (1_000, 0.3))
DELETE_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True)
class OperationRequests:
    """Columns of operations and of items, named as in an `OperationBatch`.

    A column holds arbitrary numbers for the kinds that do not have it.
    """

    operations: dict[str, Ints | Flags]
    items: dict[str, Ints]


@dataclass(frozen=True)
class LogStarts:
    """Where deletions moved the starts of logs. Groups are partitions, which begin at 0."""

    steps: StepFunctions
    log: Ints
    """The log that led at each step; -1 for a partition's first step."""


def draw_requests(
    cluster: Topology, logs: list[Log], arrivals: Arrivals, appends: Appends, marks: LogMarks, rng: np.random.Generator
) -> OperationRequests:
    kind = arrivals.kind
    count = len(kind)
    is_follower = (kind == FETCH) & (rng.random(count) < FOLLOWER_SHARE)
    first_log = arrivals.item_log[arrivals.first_item[:-1]]
    followers = np.array([log.followers for log in logs])
    replica_id = np.where(is_follower, followers[first_log, rng.integers(0, 2, count)], -1)
    committed = (kind == FETCH) & ~is_follower & (rng.random(count) < READ_COMMITTED_SHARE)
    min_bytes = drawn_from(MIN_BYTES, rng.random(count))
    operations: dict[str, Ints | Flags] = {
        "timeouts_ms": _draw_timeouts(cluster, arrivals, rng),
        "min_bytes": np.where(is_follower, 1, min_bytes),
        "replica_ids": replica_id,
        "isolation_levels": np.where(committed, READ_COMMITTED, READ_UNCOMMITTED),
        "any_key": rng.random(count) < ANY_SHARE,
        "from_now": rng.random(count) < FROM_NOW_SHARE,
    }
    offsets = _offsets(arrivals, appends, marks, is_follower, rng)
    epochs = np.array([log.epoch for log in logs])
    return OperationRequests(operations, {"offsets": offsets, "leader_epochs": epochs[arrivals.item_log]})


def drawn_from(choices: tuple[tuple[int, float], ...], drawn: np.ndarray) -> Ints:
    """Draws values by their shares."""
    values = np.array([value for value, _ in choices], dtype=np.int64)
    return np.asarray(values[pick(np.array([share for _, share in choices]), drawn)])


def _draw_timeouts(cluster: Topology, arrivals: Arrivals, rng: np.random.Generator) -> Ints:
    kind = arrivals.kind
    drawn = rng.random(len(kind))
    timeout_ms = np.full(len(kind), DELETE_TIMEOUT_MS, dtype=np.int64)
    for one, choices in ((FETCH, FETCH_TIMEOUTS_MS), (SIGNAL, SIGNAL_TIMEOUTS_MS)):
        timeout_ms[kind == one] = drawn_from(choices, drawn[kind == one])
    place = arrivals.item_place[arrivals.first_item[:-1]]
    topic_of = np.where(kind == PRODUCE, cluster.topic_of[np.minimum(place, len(cluster.topic_of) - 1)], -1)
    for index, topic in enumerate(cluster.topics):
        rows = np.flatnonzero(topic_of == index)
        timeout_ms[rows] = drawn_from(topic.timeouts_ms, drawn[rows])
    return timeout_ms


def _offsets(
    arrivals: Arrivals, appends: Appends, marks: LogMarks, is_follower: Flags, rng: np.random.Generator
) -> Ints:
    """What each item waits for, or reads from."""
    operation = arrivals.item_operation
    kind = arrivals.kind[operation]
    log = arrivals.item_log
    time_ms = arrivals.time_ms[operation]
    offset = np.ones(len(operation), dtype=np.int64)
    offset[appends.written] = appends.end_offset
    is_caught_up = rng.random(len(operation)) < CAUGHT_UP_SHARE
    behind_ms = np.where(is_caught_up, 0, rng.integers(1, BEHIND_MS_MAX, len(operation)))
    by_follower = is_follower[operation]
    for chosen, steps, at_ms in (
        ((kind == FETCH) & by_follower, appends.offsets, time_ms),
        ((kind == FETCH) & ~by_follower, marks.high_watermarks, time_ms - behind_ms),
        (kind == DELETE_RECORDS, marks.high_watermarks, time_ms - RETENTION_MS),
        ((kind == PRODUCE) & (arrivals.item_too_late | appends.repeated), marks.high_watermarks, time_ms),
    ):
        offset[chosen] = steps.at(log[chosen], at_ms[chosen])
    return offset


def move_log_starts(cluster: Topology, arrivals: Arrivals, requests: OperationRequests) -> LogStarts:
    """A leader deletes as soon as it is asked, followers when they fetch."""
    operation = arrivals.item_operation
    rows = np.flatnonzero((arrivals.kind[operation] == DELETE_RECORDS) & ~arrivals.item_too_late)
    groups: list[tuple[Ints, Ints]] = []
    led: list[Ints] = []
    zero = np.zeros(1, dtype=np.int64)
    for partition in range(len(cluster.names)):
        own = rows[arrivals.item_place[rows] == partition]
        highest = np.maximum.accumulate(requests.items["offsets"][own])
        moves = np.flatnonzero(np.diff(highest, prepend=0) > 0)
        times = arrivals.time_ms[operation[own[moves]]]
        groups.append((np.concatenate([zero, times]), np.concatenate([zero, highest[moves]])))
        led.append(np.concatenate([zero - 1, arrivals.item_log[own[moves]]]))
    return LogStarts(StepFunctions(groups), np.concatenate(led))
