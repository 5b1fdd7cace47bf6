"""Everything that happens in a run, in the order in which the engine hears of it.

Within a millisecond: first rare events (leaders that resign or are elected), then events of partitions, then of keys,
registrations by session and kind, and cancels. Of events at the same time, followers' come before leaders'.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, ReplicaSets
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

EventColumns = dict[str, Ints]
"""`time_ms`, and columns named as in an `EventBatch`."""
NUMBERS: Final = (
    "time_ms", "types", "item_indexes", "offsets", "leader_epochs", "replica_ids", "byte_positions",
    "segment_base_offsets", "log_start_offsets",
)  # fmt: skip
"""The columns of all events but the rare ones."""
ABSENT: Final[dict[str, Any]] = dict.fromkeys(NUMBERS[1:], -1) | {"item_indexes": 0, "flags": 0, "replica_sets": None}
"""What stands where a value of an event is not given."""


@dataclass(frozen=True)
class ScheduledCalls:
    """The calls in order. `start` and `stop` are rows of what the kind of call is about."""

    time_ms: Ints
    what: Ints
    start: Ints
    stop: Ints


def order_events(logs: list[Log], appends: Appends, marks: LogMarks, starts: LogStarts) -> EventColumns:
    """Appends, deletions and followers' progress. The first steps of all groups are left to the rare events."""
    partition_of, epochs = (
        np.array(column) for column in zip(*((log.partition, log.epoch) for log in logs), strict=True)
    )
    log = np.repeat(np.arange(len(logs)), np.diff(appends.offsets.first))
    written = np.ones(len(log), dtype=bool)
    written[appends.offsets.first[:-1]] = False
    log = log[written]
    segment_of = appends.offsets.values[appends.offsets.first[partition_of]]  # one for each partition, never rolled
    parts = [_progress(log, place, marks, starts) for log in logs for place in range(len(log.followers))]
    parts.append(
        _events(
            appends.offsets.times[written],
            codes.LEADER_APPEND,
            item_indexes=partition_of[log],
            offsets=appends.offsets.values[written],
            leader_epochs=epochs[log],
            byte_positions=appends.bytes.values[written],
            segment_base_offsets=segment_of[log],
        )
    )
    moved = np.flatnonzero(starts.log >= 0)
    log = starts.log[moved]
    parts.append(
        _events(
            starts.steps.times[moved],
            codes.LOG_START_OFFSET,
            item_indexes=partition_of[log],
            offsets=starts.steps.values[moved],
            leader_epochs=epochs[log],
        )
    )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in NUMBERS}
    rank = np.array([0, 1, 0, 0, 0, 2])[columns["types"]]
    order = np.lexsort((columns["item_indexes"], rank, columns["time_ms"]))
    return {name: column[order] for name, column in columns.items()}


def _progress(log: Log, place: int, marks: LogMarks, starts: LogStarts) -> EventColumns:
    """What one follower of a log reports, as far as it is news."""
    times, ends = marks.progress.of(2 * log.index + place)
    fetched_ms = np.concatenate([np.full(1, log.start_ms), times[:-1]])
    log_starts = starts.steps.at(np.full(len(times), log.partition), fetched_ms)
    news = np.ones(len(times), dtype=bool)
    news[1:] = (np.diff(ends) > 0) | (np.diff(log_starts) > 0)
    news[0] = log.before >= 0
    return _events(
        times[news],
        codes.FOLLOWER_PROGRESS,
        item_indexes=log.partition,
        offsets=ends[news],
        leader_epochs=log.epoch,
        replica_ids=log.followers[place],
        log_start_offsets=log_starts[news],
    )


def _events(time_ms: Ints, event_type: int, **columns: Ints | int) -> EventColumns:
    """Events of one type, all of whose columns are filled: a single number stands in all rows."""
    given: dict[str, Any] = {**ABSENT, **columns, "time_ms": time_ms, "types": event_type}
    return {name: np.broadcast_to(given[name], time_ms.shape) for name in NUMBERS}


def rare_events(
    cluster: Topology, logs: list[Log], changes: list[LeaderChange], appends: Appends, marks: LogMarks
) -> list[tuple[int, EventBatch]]:
    """The start of the run, absences, and leader changes, each with a resigned leader that goes on appending."""
    bases = appends.offsets.values[appends.offsets.first[:-1]].tolist()
    batches = [(0, _beginning(cluster, logs, bases))]
    for change in changes:
        old, new, base = logs[change.old_log], logs[change.new_log], bases[change.new_log]
        name = [cluster.names[change.partition]]
        last = int(appends.offsets.values[appends.offsets.first[old.index + 1] - 1])
        replicas = sorted({old.leader, *old.followers})
        leads = {"leader_epochs": new.epoch, "replica_sets": ReplicaSets(replicas=replicas, leader_id=new.leader)}
        resigned = _batch(
            name,
            {"types": codes.LEADERSHIP, "flags": 0, **leads},
            {"types": codes.LEADER_APPEND, "offsets": last + 1, "leader_epochs": old.epoch},
        )
        elected = _batch(
            name,
            {"types": codes.TRUNCATION, "offsets": base, "leader_epochs": new.epoch},
            {"types": codes.LEADERSHIP, "offsets": base, "flags": 1, **leads},
            {
                "types": codes.IN_SYNC_REPLICAS,
                "leader_epochs": new.epoch,
                "replica_sets": _in_sync(new.leader, replicas),
            },
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
    state = {"types": codes.REPLICA_STATE, "replica_ids": absence.follower, "flags": FENCED if leaves else 0}
    in_sync = {"types": codes.IN_SYNC_REPLICAS, "replica_sets": _in_sync(log.leader, members)}
    epoch = {"leader_epochs": log.epoch}
    return _batch([cluster.names[log.partition]], state | epoch, in_sync | epoch)


def _beginning(cluster: Topology, logs: list[Log], bases: list[int]) -> EventBatch:
    """Who leads and who is in sync; all replicas begin equal."""
    events: list[dict[str, Any]] = []
    for log in logs[: len(cluster.names)]:
        everyone = sorted({log.leader, *log.followers})
        of_log = {"item_indexes": log.partition, "leader_epochs": log.epoch}
        at_base = of_log | {"offsets": bases[log.index]}
        leads = ReplicaSets(replicas=everyone, leader_id=log.leader)
        events += [
            of_log | {"types": codes.LEADERSHIP, "flags": 1, "replica_sets": leads},
            of_log | {"types": codes.IN_SYNC_REPLICAS, "replica_sets": _in_sync(log.leader, everyone)},
            at_base | {"types": codes.LEADER_APPEND, "segment_base_offsets": bases[log.index]},
            *(
                at_base | {"types": codes.FOLLOWER_PROGRESS, "replica_ids": follower, "log_start_offsets": 0}
                for follower in log.followers
            ),
        ]
    return _batch(cluster.names, *events)


def _in_sync(leader: int, members: list[int]) -> ReplicaSets:
    return ReplicaSets(in_sync=members, leader_id=leader, min_in_sync_replicas=MIN_IN_SYNC_REPLICAS)


def _batch(partitions: list[tuple[str, int]], *events: dict[str, Any]) -> EventBatch:
    """A batch of events, each given as its values by column. Columns that none of them gives are left out."""
    given = {name: value for name, value in ABSENT.items() if any(name in event for event in events)}
    columns: dict[str, Any] = {name: [event.get(name, value) for event in events] for name, value in given.items()}
    return EventBatch(partitions=partitions, **columns)


def draw_signals(arrivals: Arrivals, life_ms: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """When which keys are signalled: about as often as they are waited for."""
    count = int((arrivals.kind == codes.SIGNAL).sum())
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
    events: EventColumns,
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
        _calls(EVENTS, events["time_ms"], _starts(events["time_ms"])),
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
