"""One run, drawn as a whole: brokers, fetches, arrivals, high watermarks, requests, and their order."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.engine.batches import EventBatch
from purgatory_pipeline.generate.draw import schedule
from purgatory_pipeline.generate.draw.arrivals import FLUSH_MS, REGISTRANTS, SIGNAL_KEYS, Arrivals, draw_arrivals
from purgatory_pipeline.generate.draw.log_marks import Appends, LogMarks, draw_appends, draw_fetches, follow
from purgatory_pipeline.generate.draw.requests import OperationRequests, draw_requests, move_log_starts
from purgatory_pipeline.generate.draw.topology import Ints, LeaderChange, Log, Topology, draw_logs, place_partitions
from purgatory_pipeline.generate.history_plan import BROKERS, RunPlan

LATE_SHARE: Final = 0.05
LATE_MS_MAX: Final = 4
TURNS: Final = 4_096
"""Turns of the reaper until its lateness repeats."""


@dataclass(frozen=True)
class DrawnRun:
    """A run, ready to be played."""

    plan: RunPlan
    cluster: Topology
    logs: list[Log]
    changes: list[LeaderChange]
    arrivals: Arrivals
    appends: Appends
    marks: LogMarks
    requests: OperationRequests
    events: schedule.EventColumns
    """All events of partitions but the rare ones, in order."""
    rare: list[EventBatch]
    signalled: Ints
    """Keys, in the order of their signals."""
    cancelled: Ints
    """Operations, in the order of their cancels."""
    calls: schedule.ScheduledCalls
    end_ms: int
    keys: list[str]
    session_names: list[list[tuple[str, int]]]
    """For each session the partitions that its broker leads at any time."""
    item_index: Ints
    """Place of each item's partition among those, or of its key."""
    lateness_ms: list[int]


def draw_run(plan: RunPlan) -> DrawnRun:
    """Equal plans give equal runs."""
    generators = [np.random.default_rng([plan.plan.seed, plan.index, purpose]) for purpose in range(8)]
    cluster = place_partitions(plan.plan.topics)
    logs, changes = draw_logs(cluster, plan, generators[0])
    fetches = draw_fetches(cluster, logs, plan, plan.life_ms + FLUSH_MS, generators[1])
    arrivals = draw_arrivals(cluster, logs, changes, plan, generators[2])
    appends = draw_appends(cluster, logs, fetches, arrivals, generators[3])
    marks = follow(cluster, logs, fetches, appends)
    requests = draw_requests(cluster, logs, arrivals, appends, marks, generators[4])
    events = schedule.order_events(logs, appends, marks, move_log_starts(cluster, arrivals, requests))
    rare = schedule.rare_events(cluster, logs, changes, appends, marks)
    signals_ms, signalled = schedule.draw_signals(arrivals, plan.life_ms, generators[5])
    cancels_ms, cancelled = schedule.draw_cancels(arrivals, generators[6])
    single = [(plan.life_ms * 2 // 3, schedule.CANCEL_PARTITION), (plan.life_ms * 3 // 4, schedule.CANCEL_KEY)]
    rare_ms = np.array([at_ms for at_ms, _ in rare])
    calls = schedule.order_calls(arrivals, events, rare_ms, signals_ms, (cancels_ms, cancelled), single)
    session_names, item_index = _dictionaries(cluster, logs, arrivals)
    late = generators[7].random(TURNS) < LATE_SHARE
    return DrawnRun(
        plan=plan,
        cluster=cluster,
        logs=logs,
        changes=changes,
        arrivals=arrivals,
        appends=appends,
        marks=marks,
        requests=requests,
        events=events,
        rare=[batch for _, batch in rare],
        signalled=signalled,
        cancelled=cancelled,
        calls=calls,
        end_ms=int(calls.time_ms[-1]) + 1,
        keys=[f"job-{key:02d}/finished" for key in range(SIGNAL_KEYS)],
        session_names=session_names,
        item_index=item_index,
        lateness_ms=np.where(late, generators[7].integers(1, LATE_MS_MAX + 1, TURNS), 0).tolist(),
    )


def _dictionaries(cluster: Topology, logs: list[Log], arrivals: Arrivals) -> tuple[list[list[tuple[str, int]]], Ints]:
    """The partitions that each session names, and for each item its place there."""
    places = np.zeros((len(REGISTRANTS), max(len(cluster.names), SIGNAL_KEYS)), dtype=np.int64)
    places[:] = np.arange(places.shape[1])
    names: list[list[tuple[str, int]]] = [[] for _ in REGISTRANTS]
    for session in range(BROKERS):
        led = sorted({log.partition for log in logs if log.leader == session + 1})
        names[session] = [cluster.names[partition] for partition in led]
        places[session, led] = np.arange(len(led))
    return names, np.asarray(places[arrivals.session[arrivals.item_operation], arrivals.item_place])
