"""Everything that happens in a run, in the order in which the engine hears of it.

Within a millisecond: first rare events (leaders that resign or are elected), then events of partitions, then of keys,
registrations by session and kind, and cancels. Of events at the same time, followers' come before leaders'.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.engine.batches import EventBatch, ReplicaSets
from purgatory.engine.codes import (
    FOLLOWER_PROGRESS,
    IN_SYNC_REPLICAS,
    LEADER_APPEND,
    LEADERSHIP,
    LOG_START_OFFSET,
    REPLICA_STATE,
    SIGNAL,
    TRUNCATION,
)
from purgatory_pipeline.generate.draw.arrivals import UNARY, Arrivals, key_load, pick
from purgatory_pipeline.generate.draw.log_marks import Appends, LogMarks
from purgatory_pipeline.generate.draw.requests import LogStarts
from purgatory_pipeline.generate.draw.topology import FOR_EVER_MS, Absence, Ints, LeaderChange, Log, Topology

MIN_IN_SYNC_REPLICAS: Final = 2
FENCED: Final = 2
"""A bit in a replica state's flags."""
CANCELLED_SHARE: Final = 0.004
CANCELLED_AFTER_MS: Final = 60.0

SIGNALS_EVERY_MS: Final = 10
"""Signals are sent together once in this time."""

# Kinds of call, in their order within a millisecond.
RARE: Final = 0
EVENTS: Final = 1
SIGNALS: Final = 2
REGISTER: Final = 3
CANCEL: Final = 4
CANCEL_PARTITION: Final = 5
CANCEL_KEY: Final = 6


@dataclass(frozen=True)
class ScheduledEvents:
    """All events of partitions but the rare ones, in order."""

    time_ms: Ints
    type: Ints
    partition: Ints
    offset: Ints
    leader_epoch: Ints
    replica_id: Ints
    byte_position: Ints
    segment_base_offset: Ints
    log_start_offset: Ints


@dataclass(frozen=True)
class ScheduledCalls:
    """The calls in order. `start` and `stop` are rows of what the kind of call is about."""

    time_ms: Ints
    what: Ints
    start: Ints
    stop: Ints


@dataclass(frozen=True)
class Schedule:
    events: ScheduledEvents
    rare: list[EventBatch]
    signalled: Ints
    """Keys, in the order of their signals."""
    cancelled: Ints
    """Operations, in the order of their cancels."""
    calls: ScheduledCalls
    end_ms: int


def order_events(logs: list[Log], appends: Appends, marks: LogMarks, starts: LogStarts) -> ScheduledEvents:
    """Appends, deletions and followers' progress. The first steps of all groups are left to the rare events."""
    parts = [_progress(log, place, marks, starts) for log in logs for place in range(len(log.followers))]
    group = np.repeat(np.arange(len(logs)), np.diff(appends.offsets.first))
    written = np.ones(len(group), dtype=bool)
    written[appends.offsets.first[:-1]] = False
    unknown = np.full(int(written.sum()), -1)
    epochs = np.array([log.epoch for log in logs])
    partition_of = np.array([log.partition for log in logs])
    segment_of = appends.offsets.values[appends.offsets.first[partition_of]]  # one for each partition, never rolled
    parts.append(
        [
            appends.offsets.times[written], np.full(len(unknown), LEADER_APPEND), partition_of[group[written]],
            appends.offsets.values[written], epochs[group[written]], unknown, appends.bytes.values[written],
            segment_of[group[written]], unknown,
        ]
    )  # fmt: skip
    moved = np.flatnonzero(starts.log >= 0)
    unknown = np.full(len(moved), -1)
    log = starts.log[moved]
    parts.append(
        [
            starts.steps.times[moved], np.full(len(moved), LOG_START_OFFSET), partition_of[log],
            starts.steps.values[moved], epochs[log], unknown, unknown, unknown, unknown,
        ]
    )  # fmt: skip
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    rank = np.array([0, 1, 0, 0, 0, 2])[columns[1]]
    order = np.lexsort((columns[2], rank, columns[0]))
    return ScheduledEvents(*(column[order] for column in columns))


def _progress(log: Log, place: int, marks: LogMarks, starts: LogStarts) -> list[Ints]:
    """What one follower of a log reports, as far as it is news."""
    times, ends = marks.progress.of(2 * log.index + place)
    fetched_ms = np.concatenate([np.full(1, log.start_ms), times[:-1]])
    log_starts = starts.steps.at(np.full(len(times), log.partition), fetched_ms)
    news = np.ones(len(times), dtype=bool)
    news[1:] = (np.diff(ends) > 0) | (np.diff(log_starts) > 0)
    news[0] = log.before >= 0
    count = int(news.sum())
    return [
        times[news], np.full(count, FOLLOWER_PROGRESS), np.full(count, log.partition), ends[news],
        np.full(count, log.epoch), np.full(count, log.followers[place]), np.full(count, -1), np.full(count, -1),
        log_starts[news],
    ]  # fmt: skip


def rare_events(
    cluster: Topology, logs: list[Log], changes: list[LeaderChange], appends: Appends, marks: LogMarks
) -> list[tuple[int, EventBatch]]:
    """The start of the run, absences, and leader changes, each with a resigned leader that goes on appending."""
    bases = appends.offsets.values[appends.offsets.first[:-1]].tolist()
    batches = [(0, _beginning(cluster, logs, bases))]
    for change in changes:
        old, new = logs[change.old_log], logs[change.new_log]
        name = [cluster.names[change.partition]]
        last = int(appends.offsets.values[appends.offsets.first[old.index + 1] - 1])
        replicas = sorted({old.leader, *old.followers})
        sets = ReplicaSets(replicas=replicas, leader_id=new.leader)
        resigned = EventBatch(
            [LEADERSHIP, LEADER_APPEND],
            partitions=name,
            offsets=[-1, last + 1],
            leader_epochs=[new.epoch, old.epoch],
            flags=[0, 0],
            replica_sets=[sets, None],
        )
        elected = EventBatch(
            [TRUNCATION, LEADERSHIP, IN_SYNC_REPLICAS],
            partitions=name,
            offsets=[bases[new.index], bases[new.index], -1],
            leader_epochs=[new.epoch],
            flags=[0, 1, 0],
            replica_sets=[
                None,
                sets,
                ReplicaSets(in_sync=replicas, leader_id=new.leader, min_in_sync_replicas=MIN_IN_SYNC_REPLICAS),
            ],
        )
        batches += [(change.resigned_ms, resigned), (change.elected_ms, elected)]
    for log in logs:
        if log.absence is not None:
            batches.append((log.absence.left_ms, _sync(cluster, log, log.absence, leaves=True)))
            if marks.joined_ms[log.index] < FOR_EVER_MS:
                batches.append((marks.joined_ms[log.index], _sync(cluster, log, log.absence, leaves=False)))
    return sorted(batches, key=lambda entry: entry[0])


def _sync(cluster: Topology, log: Log, absence: Absence, *, leaves: bool) -> EventBatch:
    """A follower is fenced and leaves the in-sync replicas, or is back."""
    members = sorted({log.leader, *log.followers} - ({absence.follower} if leaves else set()))
    sets = ReplicaSets(in_sync=members, leader_id=log.leader, min_in_sync_replicas=MIN_IN_SYNC_REPLICAS)
    return EventBatch(
        [REPLICA_STATE, IN_SYNC_REPLICAS],
        partitions=[cluster.names[log.partition]],
        leader_epochs=[log.epoch],
        replica_ids=[absence.follower, -1],
        flags=[FENCED if leaves else 0, 0],
        replica_sets=[None, sets],
    )


def _beginning(cluster: Topology, logs: list[Log], bases: list[int]) -> EventBatch:
    """Who leads and who is in sync; all replicas begin equal."""
    types: list[int] = []
    columns: dict[str, list[int]] = {
        name: []
        for name in ("item_indexes", "offsets", "replica_ids", "segment_base_offsets", "log_start_offsets", "flags")
    }
    sets: list[ReplicaSets | None] = []

    def say(kind: int, log: Log, replicas: ReplicaSets | None, **values: int) -> None:
        types.append(kind)
        sets.append(replicas)
        values["item_indexes"] = log.partition
        for name, column in columns.items():
            column.append(values.get(name, 0 if name == "flags" else -1))

    for log in logs[: len(cluster.names)]:
        base = bases[log.index]
        everyone = sorted({log.leader, *log.followers})
        say(LEADERSHIP, log, ReplicaSets(replicas=everyone, leader_id=log.leader), flags=1)
        in_sync = ReplicaSets(in_sync=everyone, leader_id=log.leader, min_in_sync_replicas=MIN_IN_SYNC_REPLICAS)
        say(IN_SYNC_REPLICAS, log, in_sync)
        say(LEADER_APPEND, log, None, offsets=base, segment_base_offsets=base)
        for follower in log.followers:
            say(FOLLOWER_PROGRESS, log, None, offsets=base, replica_ids=follower, log_start_offsets=0)
    return EventBatch(
        types,
        partitions=cluster.names,
        item_indexes=columns["item_indexes"],
        offsets=columns["offsets"],
        leader_epochs=[0],
        replica_ids=columns["replica_ids"],
        segment_base_offsets=columns["segment_base_offsets"],
        log_start_offsets=columns["log_start_offsets"],
        flags=columns["flags"],
        replica_sets=sets,
    )


def draw_signals(arrivals: Arrivals, life_ms: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """When which keys are signalled: about as often as they are waited for."""
    count = int((arrivals.kind == SIGNAL).sum())
    times = np.sort(rng.integers(1, life_ms // SIGNALS_EVERY_MS + 2, count)) * SIGNALS_EVERY_MS
    return times, pick(key_load(), rng.random(count))


def draw_cancels(arrivals: Arrivals, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """When which operations are cancelled, whether or not they are still pending."""
    chosen = np.flatnonzero((arrivals.session != UNARY) & (rng.random(len(arrivals.kind)) < CANCELLED_SHARE))
    times = arrivals.time_ms[chosen] + 1 + rng.exponential(CANCELLED_AFTER_MS, len(chosen)).astype(np.int64)
    order = np.lexsort((chosen, arrivals.session[chosen], times))
    return times[order], chosen[order]


def order_calls(
    arrivals: Arrivals,
    events: ScheduledEvents,
    rare_ms: Ints,
    signals_ms: Ints,
    cancels: tuple[Ints, Ints],
    single: list[tuple[int, int]],
) -> ScheduledCalls:
    """What belongs together becomes one call, in order of time. `single`: (instant, kind) of calls without rows."""
    message = (arrivals.time_ms * 8 + arrivals.session) * 8 + arrivals.kind
    starts = _starts(message, apart=arrivals.session == UNARY)
    cancels_ms, cancelled = cancels
    cancel_starts = _starts(cancels_ms * 8 + arrivals.session[cancelled])
    parts = [
        _calls(RARE, rare_ms, np.arange(len(rare_ms))),
        _calls(EVENTS, events.time_ms, _starts(events.time_ms)),
        _calls(SIGNALS, signals_ms, _starts(signals_ms)),
        _calls(REGISTER, arrivals.time_ms, starts),
        _calls(CANCEL, cancels_ms, cancel_starts),
        *(_calls(what, np.array([at_ms]), np.zeros(1, dtype=np.int64)) for at_ms, what in single),
    ]
    time_ms, what, start, stop = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((start, what, time_ms))
    return ScheduledCalls(time_ms[order], what[order], start[order], stop[order])


def _starts(values: Ints, apart: np.ndarray | None = None) -> Ints:
    """Where a value differs from the one before, or stands `apart` from all others."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    begins = np.append(True, values[1:] != values[:-1])
    if apart is not None:
        begins |= apart
    return np.flatnonzero(begins)


def _calls(what: int, times: Ints, starts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    stops = np.append(starts[1:], len(times)).astype(np.int64) if len(starts) else starts
    return times[starts], np.full(len(starts), what), starts, stops
