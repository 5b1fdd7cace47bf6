"""When followers fetch. Each follower has one fetcher for each leader and topic, which asks again as soon as it can.

Intervals between fetches are log-normal; on a share of them the slow replica takes its planted delay longer.
"""

from typing import Final

import numpy as np

from purgatory_pipeline.generate.draw.topology import Ints, Log, Topology
from purgatory_pipeline.generate.history_plan import RunPlan
from purgatory_pipeline.generate.topics import Topic

FETCHES_AFTER_THE_END: Final = 3
"""So that every follower has reported the last records."""

Fetches = dict[tuple[int, int, int], Ints]
"""(leader, follower, topic) to the instants of the fetches in milliseconds of the run, rising."""


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
