"""The ground truth of a run, for checking reports: how long each produce would have waited without a timeout, which
replica was last (both known without the engine), and what was counted while the run was played.
"""

from collections import Counter
from typing import Any, Final

import numpy as np

from purgatory.engine.codes import PRODUCE, SIGNAL
from purgatory_pipeline.generate.draw.arrivals import WITHOUT_EPOCHS
from purgatory_pipeline.generate.draw.drawn_run import DrawnRun
from purgatory_pipeline.generate.draw.log_marks import NEVER
from purgatory_pipeline.generate.draw.topology import FOR_EVER_MS, Ints, LeaderChange, Log

BOTH: Final = -1
"""In place of a replica's id: both followers reached the offset in the same millisecond."""

Truth = dict[str, Any]
"""What `run_truth` returns, and JSON holds."""


def run_truth(
    run: DrawnRun, tally: Counter[tuple[str, str, str]], rows: Counter[str], files: int, size: int, seconds: float
) -> Truth:
    """The content of a run's file: what was planned, what was planted, and what came out.

    `tally` counts operations by topic or key, kind and outcome; `rows` those of each table.
    """
    operations, wait_ms, last, held_ms = needed_ms(run)
    reached = wait_ms < NEVER
    topic = run.cluster.topic_of[run.arrivals.item_place[run.arrivals.first_item[operations]]]
    outcomes: dict[str, Counter[str]] = {}
    produces: dict[str, dict[str, int]] = {}
    for (name, kind, outcome), count in sorted(tally.items()):
        outcomes.setdefault(kind, Counter())[outcome] += count
        if kind == "produce":
            produces.setdefault(name, {})[outcome] = count
    is_key = run.arrivals.kind[run.arrivals.item_operation] == SIGNAL
    partitions = [f"{name}-{number}" for name, number in run.cluster.names]
    return {
        "run_id": run.plan.run_id,
        "started_at_ms": run.plan.start_ms,
        "life_ms": run.plan.life_ms,
        "load": run.plan.load,
        "delay_factor": run.plan.delay_factor,
        "operations": run.plan.operations,
        "rows": dict(sorted(rows.items())),
        "files": files,
        "bytes": size,
        "seconds": round(seconds, 3),
        "outcomes": outcomes,
        "produce_outcomes": produces,
        "waits": _add_up(run, topic[reached], wait_ms[reached], last[reached], held_ms[reached]),
        # Produces that no replica could ever satisfy: their leader had resigned.
        "without_wait": int(len(wait_ms) - reached.sum()),
        "leader_changes": [_change(run, change) for change in run.changes],
        "absences": [_absence(run, log) for log in run.logs if log.absence is not None],
        # An operation counts once for each partition or key that it names.
        "partitions": _counted(partitions, run.arrivals.item_place[~is_key]),
        "keys": _counted(run.keys, run.arrivals.item_place[is_key]),
    }


def needed_ms(run: DrawnRun) -> tuple[Ints, Ints, Ints, Ints]:
    """For each produce: its operation, how long it needed (NEVER: for ever), which replica was last, and by how much.

    With several partitions, the last one decides.
    """
    arrivals, marks = run.arrivals, run.marks
    operations = np.flatnonzero(arrivals.kind == PRODUCE)
    first = arrivals.first_item[operations]
    counts = arrivals.first_item[operations + 1] - first
    starts = np.cumsum(counts) - counts
    items = np.repeat(first - starts, counts) + np.arange(int(counts.sum()))
    log, offset = arrivals.item_log[items], run.requests.items["offsets"][items]
    reached_ms = marks.high_watermarks.reached(log, offset)
    too_late = arrivals.item_too_late[items]
    reached_ms[too_late] = NEVER
    # A client without epochs is not refused by a new leader: it asks for what is there already.
    elected_ms = np.full(len(run.logs), NEVER)
    elected_ms[[change.old_log for change in run.changes]] = [change.elected_ms for change in run.changes]
    sent_ms = np.repeat(arrivals.time_ms[operations], counts)
    one, other = (
        _counted_until(run, place, log, sent_ms, marks.progress.reached(2 * log + place, offset)) for place in (0, 1)
    )
    unnoticed = too_late & (np.repeat(arrivals.session[operations], counts) == WITHOUT_EPOCHS)
    unnoticed &= sent_ms >= elected_ms[log]
    reached_ms[unnoticed] = sent_ms[unnoticed]
    followers = np.array([entry.followers for entry in run.logs])[log]
    last = np.where(one > other, followers[:, 0], np.where(one < other, followers[:, 1], BOTH))
    decides = _last_of_each(reached_ms, starts, counts)
    registered_ms = arrivals.time_ms[operations]
    wait_ms = np.where(reached_ms[decides] == NEVER, NEVER, np.maximum(0, reached_ms[decides] - registered_ms))
    held_ms = np.minimum(np.abs(one - other)[decides], wait_ms)
    return operations, wait_ms, np.where(wait_ms == 0, BOTH, last[decides]), held_ms


def _counted_until(run: DrawnRun, place: int, log: Ints, sent_ms: Ints, reached_ms: Ints) -> Ints:
    """When a follower no longer held its partition back: it had the offset, or was not in sync (any more)."""
    left_ms = np.full(len(run.logs), FOR_EVER_MS)
    joined_ms = np.full(len(run.logs), FOR_EVER_MS)
    for entry in run.logs:
        if entry.absence is not None and entry.followers[place] == entry.absence.follower:
            left_ms[entry.index], joined_ms[entry.index] = entry.absence.left_ms, run.marks.joined_ms[entry.index]
    until_ms = np.where(sent_ms < joined_ms[log], np.maximum(left_ms[log], sent_ms), FOR_EVER_MS)
    return np.minimum(reached_ms, until_ms)


def _last_of_each(values: Ints, starts: Ints, counts: Ints) -> Ints:
    """The row of the highest value of each group; the first of equals."""
    group = np.repeat(np.arange(len(starts)), counts)
    order = np.lexsort((-np.arange(len(values)), values, group))
    return np.asarray(order[starts + counts - 1])


def _add_up(run: DrawnRun, topic: Ints, wait_ms: Ints, last: Ints, held_ms: Ints) -> dict[str, list[Any]]:
    """Produces by topic, by how long they needed, and by the replica that was last; and by how much that one was later
    than the other, at most since the registration, in total.
    """
    key = (topic * NEVER + wait_ms) * 64 + last + 1
    distinct, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    held = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(held, inverse, np.where(last == BOTH, 0, held_ms))
    return {
        "topic": [run.cluster.topics[place].name for place in topic[first].tolist()],
        "wait_ms": wait_ms[first].tolist(),
        "last_replica_id": last[first].tolist(),
        "operations": counts.tolist(),
        "held_back_ms": held.tolist(),
    }


def _change(run: DrawnRun, change: LeaderChange) -> Truth:
    name, partition = run.cluster.names[change.partition]
    return {
        "topic": name,
        "partition": partition,
        "from_replica_id": run.logs[change.old_log].leader,
        "to_replica_id": run.logs[change.new_log].leader,
        "resigned_at_ms": run.plan.start_ms + change.resigned_ms,
        "elected_at_ms": run.plan.start_ms + change.elected_ms,
    }


def _absence(run: DrawnRun, log: Log) -> Truth:
    absence, joined_ms = log.absence, run.marks.joined_ms[log.index]
    assert absence is not None, f"log {log.index} has no absence"
    name, partition = run.cluster.names[log.partition]
    return {
        "topic": name,
        "partition": partition,
        "replica_id": absence.follower,
        "away_at_ms": run.plan.start_ms + absence.away_ms,
        "left_at_ms": run.plan.start_ms + absence.left_ms,
        "returned_at_ms": run.plan.start_ms + absence.returns_ms,
        "joined_at_ms": None if joined_ms == FOR_EVER_MS else run.plan.start_ms + joined_ms,
    }


def _counted(names: list[str], places: Ints) -> dict[str, int]:
    return dict(zip(names, np.bincount(places, minlength=len(names)).tolist(), strict=True))
