"""How the logs move: when followers fetch, what producers append, what followers report, and the high watermarks that
follow.

Each follower has one fetcher for each leader and topic, which asks again as soon as it can. Intervals between fetches
are log-normal; on a share of them the slow replica takes its planted delay longer.

None of this depends on who waits or for how long. So the instant at which a high watermark reaches an offset is known
without the engine: the truth about how long a produce would have waited without a timeout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.engine.codes import PRODUCE
from purgatory_pipeline.generate.draw.arrivals import Arrivals
from purgatory_pipeline.generate.draw.topology import FOR_EVER_MS, Absence, Flags, Ints, Log, Topology
from purgatory_pipeline.generate.history_plan import RunPlan, Topic

FETCHES_AFTER_THE_END: Final = 3
"""So that every follower has reported the last records."""

Fetches = dict[tuple[int, int, int], Ints]
"""(leader, follower, topic) to the instants of the fetches in milliseconds of the run, rising."""

MEAN_RECORDS = 4
REPEATED_SHARE = 0.01
"""Produces that repeat what was written before: retries whose first answer was lost. They need not wait."""

BASE_OFFSET_MAX = 1_000_000

SPAN: Final = 2**42
"""Instants and values are below it, so that (group, value) fits into one sorted number."""

NEVER: Final = 2**41


class StepFunctions:
    """Steps of several groups; `times` and `values` rise within each. A group begins with its first step."""

    def __init__(self, groups: Sequence[tuple[Ints, Ints]]) -> None:
        sizes = np.array([len(times) for times, _ in groups], dtype=np.int64)
        assert sizes.min(initial=1) > 0, "a group without a step"
        group = np.repeat(np.arange(len(groups)), sizes)
        self.first: Final = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        self.times: Final = np.concatenate([times for times, _ in groups])
        self.values: Final = np.concatenate([values for _, values in groups])
        self._by_time: Final = group * SPAN + self.times
        self._by_value: Final = group * SPAN + self.values

    def index_at(self, groups: Ints, times: Ints) -> Ints:
        """The last step at or before each instant, or else the group's first."""
        found = np.searchsorted(self._by_time, groups * SPAN + times, side="right") - 1
        return np.asarray(np.maximum(found, self.first[groups]))

    def at(self, groups: Ints, times: Ints) -> Ints:
        return np.asarray(self.values[self.index_at(groups, times)])

    def reached(self, groups: Ints, values: Ints) -> Ints:
        """When each group first reached a value; NEVER if it did not."""
        found = np.searchsorted(self._by_value, groups * SPAN + values, side="left")
        there = found < self.first[groups + 1]
        return np.where(there, self.times[np.minimum(found, len(self.times) - 1)], NEVER)

    def of(self, group: int) -> tuple[Ints, Ints]:
        rows = slice(int(self.first[group]), int(self.first[group + 1]))
        return self.times[rows], self.values[rows]


@dataclass(frozen=True)
class Appends:
    """Ends of the logs: one step for each flush that wrote to a log; groups are logs."""

    offsets: StepFunctions
    bytes: StepFunctions
    written: Ints
    """Items of produces that wrote, sorted by log and time."""
    end_offset: Ints
    """For each of them the log end after it, which is what it waits for."""
    repeated: Flags
    """For each item: whether it is a retry."""


@dataclass(frozen=True)
class LogMarks:
    progress: StepFunctions
    """Log ends as followers report them; groups are 2 * log + place of the follower."""
    high_watermarks: StepFunctions
    """Groups are logs."""
    joined_ms: dict[int, int]
    """For logs with an absence: when the follower is in sync again; FOR_EVER_MS: not in this run."""


def draw_appends(
    cluster: Topology, logs: list[Log], fetches: Fetches, arrivals: Arrivals, rng: np.random.Generator
) -> Appends:
    """Every produce writes a few records, and waits for the log end after them."""
    items = len(arrivals.item_operation)
    is_produce = arrivals.kind[arrivals.item_operation] == PRODUCE
    single = np.diff(arrivals.first_item)[arrivals.item_operation] == 1
    repeated = is_produce & single & ~arrivals.item_too_late & (rng.random(items) < REPEATED_SHARE)
    written = np.flatnonzero(is_produce & ~arrivals.item_too_late & ~repeated)
    written = written[np.argsort(arrivals.item_log[written], kind="stable")]
    records = rng.geometric(1 / MEAN_RECORDS, len(written))
    record_bytes = np.array([topic.record_bytes for topic in cluster.topics])
    sizes = records * record_bytes[cluster.topic_of[arrivals.item_place[written]]]
    first = np.searchsorted(arrivals.item_log[written], np.arange(len(logs) + 1))
    time_ms = arrivals.time_ms[arrivals.item_operation[written]]
    end_offset = np.zeros(len(written), dtype=np.int64)
    ends: list[tuple[Ints, Ints]] = []
    bytes_: list[tuple[Ints, Ints]] = []
    bases = rng.integers(0, BASE_OFFSET_MAX, len(logs))
    for log in logs:
        rows = slice(int(first[log.index]), int(first[log.index + 1]))
        base, base_bytes = int(bases[log.index]), 0
        if log.before >= 0:
            before_ms = last_fetch_ms(cluster, fetches, logs[log.before], log.leader)
            base, base_bytes = (_value_at(*steps[log.before], before_ms) for steps in (ends, bytes_))
        own_ms = time_ms[rows]
        end_offset[rows] = base + np.cumsum(records[rows])
        positions = base_bytes + np.cumsum(sizes[rows])
        last = np.flatnonzero(np.append(own_ms[1:] != own_ms[:-1], True)) if len(own_ms) else own_ms
        ends.append((_after(log.start_ms, own_ms[last]), _after(base, end_offset[rows][last])))
        bytes_.append((_after(log.start_ms, own_ms[last]), _after(base_bytes, positions[last])))
    return Appends(StepFunctions(ends), StepFunctions(bytes_), written, end_offset, repeated)


def last_fetch_ms(cluster: Topology, fetches: Fetches, log: Log, follower: int) -> int:
    """When a follower last fetched from the resigned leader of an earlier log; -1: never."""
    times = fetches[log.leader, follower, int(cluster.topic_of[log.partition])]
    place = int(np.searchsorted(times, log.end_ms, side="left")) - 1
    return int(times[place]) if place >= 0 else -1


def follow(cluster: Topology, logs: list[Log], fetches: Fetches, appends: Appends) -> LogMarks:
    """What followers report, and the high watermarks that follow."""
    progress: list[tuple[Ints, Ints]] = []
    high: list[tuple[Ints, Ints]] = []
    joined_ms: dict[int, int] = {}
    for log in logs:
        reported = [_reported(cluster, logs, fetches, appends, log, follower) for follower in log.followers]
        progress.extend(reported)
        base = int(appends.offsets.values[appends.offsets.first[log.index]])
        carried = _value_at(*high[log.before], log.start_ms) if log.before >= 0 else base
        if log.absence is not None:
            joined_ms[log.index] = _joins_ms(log.absence, reported, log.followers.index(log.absence.follower))
        high.append(_lowest(log, reported, joined_ms.get(log.index, FOR_EVER_MS), carried))
    return LogMarks(StepFunctions(progress), StepFunctions(high), joined_ms)


def _reported(
    cluster: Topology, logs: list[Log], fetches: Fetches, appends: Appends, log: Log, follower: int
) -> tuple[Ints, Ints]:
    """When a follower fetched, and the log end it then reported: what it got by the previous fetch."""
    times = fetches[log.leader, follower, int(cluster.topic_of[log.partition])]
    base = int(appends.offsets.values[appends.offsets.first[log.index]])
    begins_ms, has = log.start_ms, base
    if log.before >= 0:
        before = logs[log.before]
        if follower == before.leader:
            begins_ms = log.returns_ms
        else:
            had = _value_at(*appends.offsets.of(log.before), last_fetch_ms(cluster, fetches, before, follower))
            has = min(base, had)
    times = times[(times > begins_ms) & (times < log.end_ms)]
    if log.absence is not None and log.absence.follower == follower:
        times = times[(times < log.absence.away_ms) | (times >= log.absence.returns_ms)]
    reported = appends.offsets.at(np.full(len(times), log.index), times)
    if log.before < 0:
        return _after(log.start_ms, times), np.concatenate([np.full(min(2, len(times) + 1), base), reported[:-1]])
    assert len(times), f"replica {follower} never fetched from its new leader"
    return times, _after(has, reported[:-1])


def _joins_ms(absence: Absence, reported: list[tuple[Ints, Ints]], place: int) -> int:
    """Just after the follower's first fetch since its return that reports no less than the other follower has."""
    times, ends = reported[place]
    for time_ms, end in zip(times.tolist(), ends.tolist(), strict=True):
        if time_ms >= absence.returns_ms and end >= _value_at(*reported[1 - place], time_ms):
            return int(time_ms) + 1
    return FOR_EVER_MS


def _lowest(log: Log, reported: list[tuple[Ints, Ints]], joined_ms: int, carried: int) -> tuple[Ints, Ints]:
    """The high watermark: the lower of two followers' ends, once both are known, and never going back.

    While one of them is out of sync, the other one's end alone.
    """
    absence = log.absence
    turns = [] if absence is None else [at_ms for at_ms in (absence.left_ms, joined_ms) if at_ms < FOR_EVER_MS]
    times = np.concatenate([*(times for times, _ in reported), np.array(turns, dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times = times[order]
    whose = np.repeat(np.arange(len(reported) + 1), [*(len(values) for _, values in reported), len(turns)])
    ends = np.concatenate([*(values for _, values in reported), np.full(len(turns), -1)])
    known = [np.maximum.accumulate(np.where(whose == place, ends, -1)[order]) for place in range(len(reported))]
    if absence is not None:
        out = (times >= absence.left_ms) & (times < joined_ms)
        known[log.followers.index(absence.follower)][out] = FOR_EVER_MS
    lowest = np.maximum.accumulate(np.minimum(*known))
    return _after(log.start_ms, times), _after(carried, np.maximum(carried, lowest))


def _after(first: int, values: Ints) -> Ints:
    return np.concatenate([np.array([first], dtype=np.int64), values])


def _value_at(times: Ints, values: Ints, at_ms: int) -> int:
    """The value of the last step at or before an instant, else the first one."""
    return int(values[max(0, int(np.searchsorted(times, at_ms, side="right")) - 1)])


def draw_intervals(topic: Topic, run: RunPlan, follower: int, count: int, rng: np.random.Generator) -> Ints:
    """Times between `count` fetches of one follower, in whole milliseconds from 1 on."""
    slow = run.plan.slow_replica
    intervals = topic.fetch_median_ms * run.delay_factor * np.exp(topic.fetch_sigma * rng.standard_normal(count))
    delayed = rng.random(count)
    if slow is not None and slow.replica_id == follower:
        intervals += slow.extra_ms * (delayed < slow.share)
    return np.maximum(1, np.rint(intervals)).astype(np.int64)


def draw_fetches(cluster: Topology, logs: list[Log], run: RunPlan, last_ms: int, rng: np.random.Generator) -> Fetches:
    """The fetches of all followers, until each has fetched some times after `last_ms`."""
    wanted = sorted(
        {(log.leader, follower, int(cluster.topic_of[log.partition])) for log in logs for follower in log.followers}
    )
    fetches: Fetches = {}
    for leader, follower, topic_index in wanted:
        topic = cluster.topics[topic_index]
        mean_ms = topic.fetch_median_ms * run.delay_factor * np.exp(topic.fetch_sigma**2 / 2)
        times = np.zeros(0, dtype=np.int64)
        while not len(times) or times[-1] <= last_ms:
            count = int((last_ms - (times[-1] if len(times) else 0)) / mean_ms) + 20
            more = np.cumsum(draw_intervals(topic, run, follower, count, rng))
            times = np.concatenate([times, more + (times[-1] if len(times) else 0)])
        behind = int(np.searchsorted(times, last_ms, side="right"))
        after = times[-1] + np.cumsum(draw_intervals(topic, run, follower, FETCHES_AFTER_THE_END, rng))
        times = np.concatenate([times, after])
        fetches[leader, follower, topic_index] = times[: behind + FETCHES_AFTER_THE_END]
    return fetches
