"""One generated run, through the real engine into a real archive: it is complete and repeatable, and its truth is
right.
"""

import itertools
import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.generate.history_plan import make_plan
from purgatory_pipeline.generate.make_archive import make_run
from purgatory_pipeline.generate.truth import Truth, summarize
from purgatory_pipeline.replay.load.call_windows import windows
from purgatory_pipeline.replay.load.run_files import RunContext
from purgatory_pipeline.replay.play.replay_sums import CHANGES, EQUAL, ReplaySums
from purgatory_pipeline.replay.play.run_replay import RunReplay
from purgatory_pipeline.replay.policy import UNCHANGED

from purgatory.archive import schema
from purgatory.archive.run_details import RunDetails
from tests.archive.archive_replay import read_table
from tests.pipeline.replay.recorded_run import chunks_of

pytestmark = pytest.mark.slow  # a run of six thousand operations is made, read and played again

PLAN = make_plan("6k", runs=1, seed=26)
Row = dict[str, Any]
Rows = dict[str, list[Row]]
"""By table, in the order of calls."""
Name = tuple[int, int]
"""Session number and operation id."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A small run and its truth."""
    folder = tmp_path_factory.mktemp("generated")
    return folder, make_run(PLAN.run(0), str(folder))


@pytest.fixture(scope="module")
def rows(made: tuple[Path, Truth]) -> Rows:
    """The rows of the archive, without wall-clock times, which have a test of their own."""
    return {table: read_table(made[0], table).drop_columns(["at"]).to_pylist() for table in schema.TABLES}


@pytest.fixture(scope="module")
def produces(rows: Rows) -> dict[Name, list[Row]]:
    """The registrations of produces, one row for each partition, by operation."""
    found: dict[Name, list[Row]] = defaultdict(list)
    for row in rows[schema.REGISTRATIONS]:
        if row["kind"] == "produce":
            found[row["session_number"], row["operation_id"]].append(row)
    return found


@pytest.fixture(scope="module")
def ends(rows: Rows) -> dict[Name, Row]:
    """The outcome of each operation, its first row."""
    first = [row for row in rows[schema.OUTCOMES] if row["item"] == 0]
    found = {(row["session_number"], row["operation_id"]): row for row in first}
    assert len(found) == len(first), "an operation ended twice"
    return found


@pytest.fixture(scope="module")
def needs(rows: Rows, produces: dict[Name, list[Row]]) -> dict[Name, int | None]:
    """How long each produce needed, from the rows of the archive alone: loops over what followers reported.

    The high watermark is the lowest end of the in-sync followers; with a new leader they start again. None: never
    reached.
    """
    told: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows[schema.EVENTS]:
        told[row["topic"], row["partition"]].append(row)
    reached: dict[tuple[str, int, int, int], int] = {}
    wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in itertools.chain.from_iterable(produces.values()):
        wanted[row["topic"], row["partition"]].append(row["offset"])
    for name, offsets in wanted.items():
        for epoch, marks in _high_watermarks(told[name]).items():
            for offset in offsets:
                at_ms = next((time_ms for time_ms, mark in marks if mark >= offset), None)
                if at_ms is not None:
                    reached[*name, epoch, offset] = at_ms
    return {name: _need(items, reached, told) for name, items in produces.items()}


def _high_watermarks(events: list[Row]) -> dict[int, list[tuple[int, int]]]:
    """For each leader epoch of a partition: the instants at which the high watermark rose, and to what."""
    marks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, int] = {}
    in_sync: list[int] = []
    highest = -1
    for event in events:
        if event["type"] == "leadership":
            ends = {}
        elif event["type"] == "in_sync_replicas":
            in_sync = [replica for replica in event["in_sync"] if replica != event["leader_id"]]
        elif event["type"] == "follower_progress":
            ends[event["replica_id"]] = event["offset"]
        lowest = min((ends.get(replica, -1) for replica in in_sync), default=-1)
        if lowest >= highest and lowest >= 0:
            highest = lowest
            marks[event["leader_epoch"]].append((event["time_ms"], highest))
    return marks


def _need(
    rows: list[Row], reached: dict[tuple[str, int, int, int], int], told: dict[tuple[str, int], list[Row]]
) -> int | None:
    needed = 0
    for row in rows:
        name, now_ms = (row["topic"], row["partition"]), row["time_ms"]
        leads = [event for event in told[name] if event["type"] == "leadership" and event["time_ms"] <= now_ms][-1]
        stale = row["leader_epoch"] is not None and row["leader_epoch"] < leads["leader_epoch"]
        at_ms = reached.get((*name, leads["leader_epoch"], row["offset"]))
        if leads["flags"] == 0 or stale or at_ms is None:
            return None
        needed = max(needed, at_ms - now_ms)
    return needed


def test_every_operation_ends_once_and_totals_agree(
    made: tuple[Path, Truth], rows: Rows, ends: dict[Name, Row]
) -> None:
    """All operations asked for are registered, and each ends; the truth counts the same."""
    truth = made[1]
    heads = [row for row in rows[schema.REGISTRATIONS] if row["item"] == 0]
    assert len(heads) == truth["operations"] == PLAN.operations
    assert {(row["session_number"], row["operation_id"]) for row in heads} == set(ends)
    counted = Counter((row["kind"], row["outcome"]) for row in ends.values())
    said = {(kind, outcome): count for kind, part in truth["outcomes"].items() for outcome, count in part.items()}
    assert dict(counted) == said
    assert {table: len(part) for table, part in rows.items()} == truth["rows"]


def test_calls_are_numbered_without_a_gap_and_time_never_goes_back(rows: Rows) -> None:
    """Call numbers run from 1 without a gap, at one instant each, in order of time; so a reader can replay them."""
    times: dict[int, set[int]] = defaultdict(set)
    for table in (schema.REGISTRATIONS, schema.OUTCOMES, schema.EVENTS, schema.CALLS):
        for row in rows[table]:
            times[row["call_number"]].add(row["time_ms"])
    assert sorted(times) == list(range(1, len(times) + 1))
    assert all(len(instants) == 1 for instants in times.values())
    in_order = [max(times[number]) for number in sorted(times)]
    assert in_order == sorted(in_order)


def test_wall_clock_time_is_the_planned_one(made: tuple[Path, Truth]) -> None:
    """Every row is at the run's start plus its own milliseconds, whenever the archive was made."""
    for table in schema.TABLES:
        found = read_table(made[0], table)
        at_ms = found["at"].cast(pa.int64()).to_numpy()
        assert (at_ms - found["time_ms"].to_numpy() == PLAN.run(0).start_ms).all()


def test_an_unchanged_replay_gives_the_same_outcomes(made: tuple[Path, Truth], rows: Rows) -> None:
    """The pipeline's replay of the archive's rows ends every operation as recorded: when, how and with what answer."""
    details = RunDetails.from_json(rows[schema.MARKERS][0]["detail"])
    chunks = chunks_of({table: read_table(made[0], table) for table in schema.TABLES}, random.Random(26))
    sums = ReplaySums()
    run = RunReplay(RunContext(PLAN.run(0).run_id, details), [UNCHANGED], sums)
    for window in windows(chunks, 0, rows_min=100):
        run.take(window)
    run.finish()
    verdicts: Counter[int] = Counter()
    for row in sums.table().to_pylist():
        verdicts[row["detail"]] += row["operations"] if row["section"] == CHANGES else 0
    assert +verdicts == {EQUAL: PLAN.operations}


def test_satisfied_produces_waited_as_long_as_they_needed(
    produces: dict[Name, list[Row]], ends: dict[Name, Row], needs: dict[Name, int | None]
) -> None:
    """Satisfied: exactly the need; expired: the need is no less than the timeout; failed: never reached."""
    seen: Counter[str] = Counter()
    for name, need in needs.items():
        end = ends[name]
        seen[end["outcome"]] += 1
        if end["outcome"] == "satisfied":
            assert end["waited_ms"] == need
        elif end["outcome"] == "expired":
            assert need is None or need >= produces[name][0]["timeout_ms"]
        elif end["outcome"] == "failed":
            assert need is None
    assert seen["satisfied"] > 3_000
    assert seen["expired"] > 50


def test_the_truth_is_what_the_archive_shows(
    made: tuple[Path, Truth], produces: dict[Name, list[Row]], needs: dict[Name, int | None]
) -> None:
    """Planted waits by topic are those computed from the archive's rows, one by one."""
    waits = made[1]["waits"]
    said: Counter[tuple[str, int]] = Counter()
    for topic, wait_ms, operations in zip(waits["topic"], waits["wait_ms"], waits["operations"], strict=True):
        said[topic, wait_ms] += operations
    shown = Counter((produces[name][0]["topic"], need) for name, need in needs.items() if need is not None)
    assert shown == said
    assert made[1]["without_wait"] == sum(need is None for need in needs.values())


def test_leaders_change_as_planted(made: tuple[Path, Truth], rows: Rows, ends: dict[Name, Row]) -> None:
    """What waits on a resigning leader fails: with an epoch with 74, without one with 6; and clients go on."""
    truth = made[1]
    events = rows[schema.EVENTS]
    refused = [row for row in events if row["refusal_code"] != schema.ACCEPTED]
    assert len(refused) == len(truth["leader_changes"]) == 2
    for change in truth["leader_changes"]:
        name = (change["topic"], change["partition"])
        own = [row for row in events if (row["topic"], row["partition"]) == name]
        assert [row["leader_epoch"] for row in own if row["type"] == "leadership"] == [0, 1, 1]
        assert max(row["leader_epoch"] for row in own if row["type"] == "leader_append") == 1
    failed = [row for row in ends.values() if row["kind"] == "produce" and row["outcome"] == "failed"]
    assert {row["error_code"] for row in failed if row["session_number"] != 4} == {74}
    assert {row["error_code"] for row in failed if row["session_number"] == 4} == {6}


def test_kinds_and_callers_are_mixed(rows: Rows) -> None:
    """Long polls of followers and consumers, several partitions, several principals, cancels of all sorts."""
    registrations = rows[schema.REGISTRATIONS]
    fetches = [row for row in registrations if row["kind"] == "fetch"]
    assert {row["replica_id"] >= 0 for row in fetches} == {True, False}
    assert len({row["min_bytes"] for row in fetches}) == 3
    assert {row["principal"] for row in registrations} == {"brokers", "jobs", ""}
    assert {row["kind"] for row in registrations if row["item_count"] > 1} == {"produce", "fetch", "signal"}
    assert any(row["any_key"] for row in registrations)
    calls = {row["call"] for row in rows[schema.CALLS]}
    assert calls == {schema.CANCEL, schema.CANCEL_PARTITION, schema.CANCEL_KEY, schema.SHUT_DOWN}


def test_the_same_seed_gives_the_same_rows(made: tuple[Path, Truth], tmp_path: Path) -> None:
    """Made again, every row of every table is there again, in the same order; another seed gives other rows."""
    small = make_plan("600", runs=1, seed=7)
    again = [tmp_path / "first", tmp_path / "second"]
    for folder in again:
        make_run(small.run(0), str(folder))
    for table in schema.TABLES:
        assert read_table(again[0], table).equals(read_table(again[1], table))
    make_run(make_plan("600", runs=1, seed=8).run(0), str(tmp_path / "other"))
    assert not read_table(again[0], schema.OUTCOMES).equals(read_table(tmp_path / "other", schema.OUTCOMES))


def test_a_run_that_is_made_twice_is_there_once(tmp_path: Path) -> None:
    """A repeated task writes the same files at the same places: nothing is doubled, nothing is left over."""
    plan = make_plan("600", runs=2).run(1)
    make_run(plan, str(tmp_path))
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    make_run(plan, str(tmp_path))
    assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.parquet")} == files
    assert not list((tmp_path / "_writing").iterdir())


def test_quantiles_and_stragglers_of_the_whole(made: tuple[Path, Truth]) -> None:
    """The summary's quantiles are those of all waits of its runs, and the slow replica is the worst straggler."""
    whole = summarize(PLAN, str(made[0]))
    waits = made[1]["waits"]
    for topic in {"", *waits["topic"]}:
        of_topic = [place for place, name in enumerate(waits["topic"]) if topic in {"", name}]
        every = np.repeat(np.array(waits["wait_ms"])[of_topic], np.array(waits["operations"])[of_topic])
        said = whole["produce_waits_without_timeout"][topic]
        assert said["operations"] == len(every)
        for name, quantile in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
            assert said[name] == np.quantile(every, quantile, method="inverted_cdf")
    assert PLAN.slow_replica is not None
    assert whole["stragglers"][0]["replica_id"] == PLAN.slow_replica.replica_id
    assert json.loads((made[0] / "_truth" / "truth.json").read_text()) == whole
    table: pa.Table = pq.read_table(made[0] / "_truth" / "produce_waits.parquet")
    assert sum(table["operations"].to_pylist()) == whole["produce_waits_without_timeout"][""]["operations"]


def test_absent_followers_leave_and_join_again(made: tuple[Path, Truth], rows: Rows) -> None:
    """While one is away its partition waits; once it is out of the in-sync set, the others go on; then it is back."""
    start_ms = PLAN.run(0).start_ms
    assert len(made[1]["absences"]) == 2
    for absence in made[1]["absences"]:
        name = (absence["topic"], absence["partition"])
        own = [row for row in rows[schema.EVENTS] if (row["topic"], row["partition"]) == name]
        told = [row["time_ms"] for row in own if row["replica_id"] == absence["replica_id"]]
        away_ms, left_ms, returned_ms, joined_ms = (
            absence[f"{what}_at_ms"] - start_ms for what in ("away", "left", "returned", "joined")
        )
        assert not [at_ms for at_ms in told if away_ms <= at_ms < returned_ms and at_ms != left_ms]
        sets = [(row["time_ms"], row["in_sync"]) for row in own if row["type"] == "in_sync_replicas"]
        assert [at_ms for at_ms, _ in sets] == [0, left_ms, joined_ms]
        assert [absence["replica_id"] in members for _, members in sets] == [True, False, True]
