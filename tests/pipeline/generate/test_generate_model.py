"""The model behind a generated history: drawn values follow the plan; step functions answer like a plain loop."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_pipeline.generate.draw.arrivals import FLUSH_MS, KIND_SHARES, REGISTRANTS, UNARY, Arrivals, draw_arrivals
from purgatory_pipeline.generate.draw.log_marks import NEVER, StepFunctions, draw_fetches, draw_intervals
from purgatory_pipeline.generate.draw.topology import draw_logs, place_partitions
from purgatory_pipeline.generate.history_plan import BROKERS, make_plan

from purgatory.engine.codes import SIGNAL

PLAN = make_plan("40k", runs=1)
RUN = PLAN.run(0)
CLUSTER = place_partitions(PLAN.topics)


@pytest.fixture(scope="module")
def arrivals() -> Arrivals:
    rng = np.random.default_rng(11)
    logs, changes = draw_logs(CLUSTER, RUN, rng)
    return draw_arrivals(CLUSTER, logs, changes, RUN, rng)


@pytest.mark.parametrize("topic", PLAN.topics, ids=lambda topic: topic.name)
def test_intervals_between_fetches_are_log_normal(topic: object) -> None:
    """Median, 90 % and 99 % are those of the planned distribution, within 2 % and the rounding to milliseconds."""
    chosen = next(one for one in PLAN.topics if one is topic)
    drawn = draw_intervals(chosen, RUN, 1, 200_000, np.random.default_rng(5))
    for quantile, normal in ((0.5, 0.0), (0.9, 1.2816), (0.99, 2.3263)):
        planted = chosen.fetch_median_ms * RUN.delay_factor * math.exp(chosen.fetch_sigma * normal)
        assert np.quantile(drawn, quantile) == pytest.approx(planted, rel=0.02, abs=0.6)


def test_the_slow_replica_is_later_by_what_was_planted() -> None:
    """Its share of late fetches and their delay are those of the plan; the other replicas have none."""
    slow = PLAN.slow_replica
    assert slow is not None
    draws = {
        replica: draw_intervals(PLAN.topics[1], RUN, replica, 200_000, np.random.default_rng(5))
        for replica in (1, slow.replica_id)
    }
    later = draws[slow.replica_id] - draws[1]
    assert set(np.unique(later)) == {0, slow.extra_ms}
    assert np.mean(later > 0) == pytest.approx(slow.share, rel=0.03)


def test_followers_fetch_until_after_the_end() -> None:
    """Each follower of each log has rising fetches, from the beginning until after the last append."""
    rng = np.random.default_rng(3)
    logs, _ = draw_logs(CLUSTER, RUN, rng)
    fetches = draw_fetches(CLUSTER, logs, RUN, 10_000, rng)
    for log in logs:
        for follower in log.followers:
            times = fetches[log.leader, follower, int(CLUSTER.topic_of[log.partition])]
            assert (np.diff(times) > 0).all()
            assert times[-2] > 10_000


def test_replicas_are_three_brokers() -> None:
    """Every partition has a leader and two followers, all different, and each broker leads about as many."""
    for leader, followers in zip(CLUSTER.leader_of.tolist(), CLUSTER.followers_of.tolist(), strict=True):
        assert {leader, *followers} <= set(range(1, BROKERS + 1))
        assert len({leader, *followers}) == 3
    led = np.bincount(CLUSTER.leader_of)[1:]
    assert led.max() - led.min() <= 1


def test_arrivals_are_a_poisson_stream(arrivals: Arrivals) -> None:
    """Counts in equal spans of time vary as much as their mean: only chance decides between two flushes."""
    broker = arrivals.time_ms[arrivals.session == 0]
    counts = np.bincount(broker // FLUSH_MS)[1:-1]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1, abs=0.15)


def test_kinds_and_partitions_have_their_shares(arrivals: Arrivals) -> None:
    """Kinds of operations, and the load of the busiest partition, are as planted."""
    for kind, share in KIND_SHARES:
        assert np.mean(arrivals.kind == kind) == pytest.approx(share, rel=0.1)
    place = arrivals.item_place[arrivals.first_item[:-1]][arrivals.kind != SIGNAL]
    hottest = int(CLUSTER.load.argmax())
    assert np.mean(place == hottest) == pytest.approx(CLUSTER.load[hottest], rel=0.05)


def test_operation_ids_rise_by_one_in_each_session(arrivals: Arrivals) -> None:
    """In the order of registration, from 1 on, as the daemon demands of its clients."""
    assert (np.diff(arrivals.time_ms) >= 0).all()
    for session in range(len(REGISTRANTS)):
        ids = arrivals.operation_id[arrivals.session == session]
        assert ids.tolist() == list(range(1, len(ids) + 1))


def test_an_operation_names_no_partition_twice(arrivals: Arrivals) -> None:
    """An operation names each partition once, and only ones that its session's broker leads; unary ones may name
    any.
    """
    counts = np.diff(arrivals.first_item)
    assert counts.max() > 1
    pairs = np.stack([arrivals.item_operation, arrivals.item_place])
    assert len(np.unique(pairs, axis=1).T) == len(arrivals.item_place)
    several = np.flatnonzero((counts[arrivals.item_operation] > 1) & (arrivals.item_log >= 0))
    session = arrivals.session[arrivals.item_operation[several]]
    assert (session != UNARY).all()
    assert (CLUSTER.leader_of[arrivals.item_place[several]] == session + 1).all()


_GROUP = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=8)


@given(st.lists(_GROUP, min_size=1, max_size=4), st.integers(0, 40), st.integers(0, 45))
def test_steps_answer_as_a_plain_loop_does(groups: list[list[tuple[int, int]]], at_ms: int, wanted: int) -> None:
    """The value at an instant is that of the last step so far; a value is reached with the first step that has it."""
    columns = []
    for group in groups:
        times = np.sort(np.array([time for time, _ in group]))
        columns.append((times, np.cumsum(np.array([rise for _, rise in group]))))
    steps = StepFunctions(columns)
    for index, (times, values) in enumerate(columns):
        pairs = list(zip(times.tolist(), values.tolist(), strict=True))
        value = pairs[0][1]
        reached = NEVER
        for time, rising in pairs:
            if time <= at_ms:
                value = rising
            if rising >= wanted and reached == NEVER:
                reached = time
        place = np.array([index])
        assert steps.at(place, np.array([at_ms])).tolist() == [value]
        assert steps.reached(place, np.array([wanted])).tolist() == [reached]
