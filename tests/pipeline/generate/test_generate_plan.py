"""The plan of a generated history: how the command line is read, and how a history is split into runs."""

from collections.abc import Callable

import pytest
from purgatory_pipeline.errors import PolicyInvalid, WindowInvalid
from purgatory_pipeline.generate.history_plan import (
    DAY_MS,
    RUN_OPERATIONS_MAX,
    SlowReplica,
    load_at,
    make_plan,
    parse_duration,
    parse_operations,
    parse_slow_replica,
)


@pytest.mark.parametrize(
    ("text", "operations"),
    [("7", 7), ("10k", 10_000), ("1.5M", 1_500_000), ("100M", 100_000_000), ("2_000", 2_000), ("1g", 10**9)],
)
def test_operations_take_the_usual_suffixes(text: str, operations: int) -> None:
    """10k, 1.5M and plain numbers are what they look like."""
    assert parse_operations(text) == operations


@pytest.mark.parametrize("text", ["", "0", "-5", "many", "1.5", "10kk", "1e6", "20G"])
def test_operations_that_are_no_number_are_refused(text: str) -> None:
    """One line names the option, and the value as it was given."""
    with pytest.raises(PolicyInvalid, match=f"--operations {text}"):
        parse_operations(text)


@pytest.mark.parametrize(("text", "length_ms"), [("24h", DAY_MS), ("90m", 5_400_000), ("7d", 7 * DAY_MS)])
def test_durations_take_units(text: str, length_ms: int) -> None:
    """A number and a unit."""
    assert parse_duration(text) == length_ms


def test_a_slow_replica_is_given_by_id_delay_and_share() -> None:
    """Without a share it is slow at every fetch; `none` plants none."""
    assert parse_slow_replica("2=+40ms@12.5%") == SlowReplica(2, 40, 0.125)
    assert parse_slow_replica("4=+40ms") == SlowReplica(4, 40, 1.0)
    assert parse_slow_replica("none") is None


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: make_plan("10k", duration="soon"), "--duration soon"),
        (lambda: make_plan("10k", duration="3s"), "--duration 3s"),
        (lambda: make_plan("10k", slow_replica="3"), "--slow-replica 3"),
        (lambda: make_plan("10k", slow_replica="9=+5ms"), "--slow-replica 9"),
        (lambda: make_plan("10k", slow_replica="3=+5ms@0%"), "--slow-replica 3"),
        (lambda: make_plan("10k", topics="a,a"), "--topics a,a"),
        (lambda: make_plan("10k", topics="0"), "--topics 0"),
        (lambda: make_plan("10k", topics="not a name"), "--topics not a name"),
        (lambda: make_plan("10k", timeout_ms=0), "--timeout-ms 0"),
        (lambda: make_plan("10k", seed=-1), "--seed -1"),
        (lambda: make_plan("10k", start="tomorrow"), "--start tomorrow"),
        (lambda: make_plan("10M", runs=2), "--runs 2"),
        (lambda: make_plan("10", runs=11), "--runs 11"),
    ],
)
def test_bad_options_are_named(make: Callable[[], object], option: str) -> None:
    """Every option that cannot be used is refused in one line that begins with it."""
    with pytest.raises((PolicyInvalid, WindowInvalid), match=f"^{option.replace('+', '.')}"):
        make()


@pytest.mark.parametrize("operations", ["1", "17", "20k", "1M", "99999999"])
def test_runs_add_up_to_the_operations(operations: str) -> None:
    """No operation is lost or invented in the split, and no run is larger than one task should hold."""
    plan = make_plan(operations)
    runs = [plan.run(index) for index in range(plan.runs)]
    assert sum(run.operations for run in runs) == plan.operations
    assert max(run.operations for run in runs) <= RUN_OPERATIONS_MAX
    assert len({run.run_id for run in runs}) == plan.runs
    starts = [run.start_ms - plan.start_ms for run in runs]
    assert starts == sorted(starts)
    assert 0 <= starts[0] <= starts[-1] < plan.duration_ms


def test_runs_lie_closer_where_load_is_higher() -> None:
    """From eight to twenty o'clock there is 69.1 % of a day's load (1/2 + 0.6/pi), and so of its runs."""
    plan = make_plan("100M", runs=1_000)
    hours = [plan.run(index).start_ms % DAY_MS / 3_600_000 for index in range(plan.runs)]
    assert sum(8 <= hour < 20 for hour in hours) == pytest.approx(691, abs=2)


def test_load_has_a_mean_of_one() -> None:
    """So rates are those of the day's mean; the peak is at two in the afternoon."""
    minutes = [load_at(minute * 60_000) for minute in range(24 * 60)]
    assert sum(minutes) / len(minutes) == pytest.approx(1)
    assert minutes.index(max(minutes)) == 14 * 60


def test_a_timeout_is_planted_with_shorter_and_longer_ones() -> None:
    """Most clients set it; some a quarter of it, which is too short, and some five times as much."""
    plan = make_plan("10k", topics="orders,mine", timeout_ms=400)
    assert [topic.name for topic in plan.topics] == ["orders", "mine"]
    for topic in plan.topics:
        assert [timeout_ms for timeout_ms, _ in topic.timeouts_ms] == [100, 400, 2_000]
        assert sum(share for _, share in topic.timeouts_ms) == pytest.approx(1)


def test_the_slower_hours_are_those_planted() -> None:
    """Runs that begin within the incident have slower followers, the others do not."""
    plan = make_plan("100M", runs=200)
    assert plan.incident is not None
    runs = [plan.run(index) for index in range(plan.runs)]
    within = [plan.incident.from_ms <= run.start_ms - plan.start_ms < plan.incident.until_ms for run in runs]
    assert [run.delay_factor > 1 for run in runs] == within
    assert 0 < sum(within) < 30
