"""Replays of incomplete histories: everything is counted, and only reliable outcomes are compared."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.replay.policy import UNCHANGED, Policy, parse_policies, parse_policy
from purgatory_pipeline.replay.replay_account import ReplayAccount
from purgatory_pipeline.replay.replay_sums import frames_of
from purgatory_pipeline.replay.replay_task import ReplayPlan, replay_runs
from purgatory_pipeline.replay.run_files import NEVER, find_runs

from purgatory.engine.batches import EventBatch, ReplicaSets
from purgatory.engine.calls import Apply
from purgatory.engine.codes import FOLLOWER_PROGRESS, IN_SYNC_REPLICAS, LEADER_APPEND, LEADERSHIP
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.run_details import RunDetails, saved_marks
from tests.kit.recorded import assert_recorded, cases_of
from tests.pipeline.archive.histories import History, small_history, write_file


def sums_of(root: Path, policies: Sequence[Policy]) -> pd.DataFrame:
    archive = find_archive(str(root))
    batches = list(replay_runs(ReplayPlan(archive.uri, tuple(policies)), find_runs(archive), results=False))
    return pa.Table.from_batches(batches).to_pandas()


def replayed(root: Path, *policies: Policy) -> ReplayAccount:
    runs = find_runs(find_archive(str(root)))
    sums = sums_of(root, policies or (UNCHANGED,))
    account = ReplayAccount(sums, [run.facts for run in runs], policies or (UNCHANGED,))
    assert account.is_balanced, account.totals()
    return account


def replayed_rows(root: Path, policy: Policy, run_id: str = "run-a") -> list[dict[str, Any]]:
    """The results of a run's operations under a policy."""
    archive = find_archive(str(root))
    batches = replay_runs(ReplayPlan(archive.uri, (policy,)), find_runs(archive), results=True)
    return [row for batch in batches for row in batch.to_pylist() if row["run_id"] == run_id]


def verdicts(account: ReplayAccount) -> tuple[int, int, int, int]:
    return account.equal, account.different, account.no_outcome, account.in_doubt


def without(history: History, table: str, *, chosen: Any) -> History:  # noqa: ANN401 -- a condition
    history.rows[table] = [row for row in history.rows[table] if not chosen(row)]
    return history


def change_answers(history: History) -> None:
    history.rows[schema.OUTCOMES][7]["reached_offset"] = 99
    history.rows[schema.OUTCOMES][11]["lateness_ms"] = 1


def crash(history: History) -> None:
    without(history, schema.MARKERS, chosen=lambda row: row["marker"] == schema.ENDED)
    last = history.rows[schema.OUTCOMES][14]["call_number"]
    history.mark(schema.CRASHED, 160, call_number=last)


def turn_back_clock(history: History) -> None:
    history.rows[schema.EVENTS][8]["time_ms"] = 1


def drop(table: str, column: str, *values: object) -> Callable[[History], History]:
    return lambda history: without(history, table, chosen=lambda row: row[column] in values)


GAPS = Path(__file__).with_name("gaps.txt")


def test_gaps_are_counted_and_reported(tmp_path: Path) -> None:
    """As in gaps.txt."""

    def account(case: str) -> str:
        history, folder = small_history(), tmp_path / f"{abs(hash(case))}"
        eval(case, globals())(history)
        history.write(folder, rows_per_file=30)
        found = replayed(folder)
        return "\n".join([f"{verdicts(found)}", found.sentence(), *found.totals(), *found.notes()]).replace(
            str(folder), ""
        )

    assert_recorded(GAPS, map(account, cases_of(GAPS)))


def test_outcomes_that_do_not_follow_from_the_events(tmp_path: Path) -> None:
    drop(schema.EVENTS, "type", "high_watermark")(small_history(operations=10)).write(tmp_path)
    account = replayed(tmp_path)
    assert account.different > 0
    assert account.sentence() != "unchanged policy: 100 % of 10 outcomes equal"
    assert "did not end as recorded" in account.notes()[0]


def test_after_lost_events_nothing_is_compared(tmp_path: Path) -> None:
    history = small_history()
    lost = history.rows[schema.EVENTS][9:14]
    calls = {"call_number": lost[0]["call_number"], "last_call_number": lost[-1]["call_number"]}
    history.mark(schema.DROPPED, 150, table=schema.EVENTS, rows=len(lost), **calls)
    without(history, schema.EVENTS, chosen=lambda row: row in lost).write(tmp_path)
    account = replayed(tmp_path)
    equal, different, no_outcome, in_doubt = verdicts(account)
    assert (different, no_outcome, equal + in_doubt) == (0, 0, 20)
    assert equal == 10, "nine satisfied or expired before, and one that expired just before the first lost event"
    assert any("events are missing" in note for note in account.notes())


def test_a_missing_file_of_events_casts_doubt_on_what_follows(tmp_path: Path) -> None:
    files = small_history().write(tmp_path, rows_per_file=4)
    of_events = sorted(path for path in files if path.relative_to(tmp_path).parts[0] == schema.EVENTS)
    of_events[2].unlink()
    (run,) = find_runs(find_archive(str(tmp_path)))
    account = replayed(tmp_path)
    assert run.facts.in_doubt_from < NEVER
    assert account.different == 0
    assert account.in_doubt > 0
    assert account.equal >= 6


def test_rows_that_are_there_twice_do_not_count_twice(tmp_path: Path) -> None:
    """A second file that repeats rows of the first one, as an interrupted copy leaves it, changes nothing."""
    history = small_history()
    history.write(tmp_path)
    copy = History("run-a", rows={table: list(rows[: 2 * len(rows) // 3]) for table, rows in history.rows.items()})
    copy.rows[schema.MARKERS].clear()
    for table, rows in copy.rows.items():
        if rows:
            write_file(tmp_path, table, rows, "run-a", 2)
    account = replayed(tmp_path)
    assert verdicts(account) == (20, 0, 0, 0)
    assert any("duplicate rows" in note for note in account.notes())


def test_a_late_reaper_is_in_no_line(tmp_path: Path) -> None:
    """A signal that came after the timeout and before the recorded reaper: it satisfied the wait, but in no line."""
    history = small_history()
    key: dict[str, Any] = {"kind": "signal", "topic": "job-1", "partition": None}
    history.register(50, 210, timeout_ms=5, offset=1, **key)
    history.event("key_signalled", 217, topic="job-1", partition=None, offset=1)
    history.end(50, 217, waited_ms=7, reached_offset=1, call_number=history.calls, **key)
    history.write(tmp_path)
    policies = parse_policies(Policy(), ["produce:timeout_ms=1,100"])
    sums = sums_of(tmp_path, policies)
    account = ReplayAccount(sums, [], policies)
    assert verdicts(account) == (21, 0, 0, 0)
    assert "1 operation would end differently if no expiration were late, as in the lines below" in account.notes()
    outcomes = frames_of(sums, policies)["outcomes"]
    lines = outcomes[outcomes["topic"].isna()].set_index(["kind", "policy", "outcome"])["operations"]
    assert dict(lines["signal"].groupby("outcome").sum()) == {"expired": 3}
    assert lines["produce"].tolist() == [4, 16, 20, 20]


def test_operations_that_still_wait_at_the_end_stay_open(tmp_path: Path) -> None:
    small_history().write(tmp_path)
    without(small_history("run-b"), schema.EVENTS, chosen=lambda row: row["offset"] == 20).write(tmp_path)
    policy = parse_policy(["timeout_ms=1000"])
    assert {row["replayed"] for row in replayed_rows(tmp_path, policy)} == {"satisfied"}
    still_open = [row["operation_id"] for row in replayed_rows(tmp_path, policy, "run-b") if row["replayed"] is None]
    assert still_open == [20]


def test_a_continued_run_begins_with_the_marks_of_its_journal(tmp_path: Path) -> None:
    """Also for policies that move marks: sets, replicas and epochs that are not in the run's own events decide."""
    engine = RunDetails("1").make_engine(0)
    events = EventBatch(
        [LEADERSHIP, IN_SYNC_REPLICAS, LEADER_APPEND, FOLLOWER_PROGRESS, LEADER_APPEND],
        partitions=[("orders", 0)],
        item_indexes=[0],
        offsets=[-1, -1, 3, 3, 5],
        leader_epochs=[1],
        flags=[1],
        replica_ids=[2],
        replica_sets=[None, ReplicaSets(in_sync=[1, 2], leader_id=1), None, None, None],
    )
    assert not engine.perform(None, Apply(events), 1).refusals
    history = History()
    history.mark(schema.STARTED, 2, detail=json.dumps({"version": "1", "continued": True}))
    for detail in saved_marks(engine.snapshots):
        history.mark(schema.MARKS, 2, detail=detail)
    history.register(1, 3, offset=5, timeout_ms=2_000)
    history.event("leadership", 5, flags=1, leader_epoch=2)
    history.event("follower_progress", 10, replica_id=2, offset=5)
    history.end(1, 10, waited_ms=7, reached_offset=5, call_number=history.calls)
    history.mark(schema.ENDED, 3_000)
    history.write(tmp_path)
    assert verdicts(replayed(tmp_path, UNCHANGED)) == (1, 0, 0, 0)
    policies = {
        47: parse_policy([], ["2=+40ms"]),
        0: parse_policy(without_replicas=["2"]),
        1_002: parse_policy(leader_moves="1s"),
    }
    for waited_ms, policy in policies.items():
        [row] = replayed_rows(tmp_path, policy)
        assert (row["replayed"], row["replayed_waited_ms"]) == ("satisfied", waited_ms)


@pytest.mark.parametrize("some", [False, True])
def test_a_continued_run_whose_marks_are_lost_is_in_doubt(tmp_path: Path, some: bool) -> None:
    history = small_history()
    history.rows[schema.MARKERS][0]["detail"] = json.dumps({"version": "1", "continued": True})
    if some:
        history.mark(schema.MARKS, detail="[[], []]", call_number=0)
        history.mark(schema.DROPPED, table=schema.MARKERS, rows=1, call_number=0, last_call_number=0)
    history.write(tmp_path)
    assert verdicts(replayed(tmp_path, UNCHANGED)) == (0, 0, 0, 20)


def test_pushed_marks_are_left_out_where_they_follow_from_the_replicas(tmp_path: Path) -> None:
    """With a slow replica, marks are recomputed where the in-sync set is known and kept elsewhere; notes say so."""
    history = History()
    history.mark(schema.STARTED)
    history.event("in_sync_replicas", 1, in_sync=[1, 2], leader_id=1, replicas=[], proposed=[], min_in_sync_replicas=-1)
    topics = ("orders", "audit")
    for number, topic in enumerate(topics, 1):
        history.register(number, 2, topic=topic, offset=5)
        history.event("leader_append", 2, topic=topic, offset=5)
    for topic in topics:
        history.event("follower_progress", 10, topic=topic, replica_id=2, offset=5)
    for topic in topics:
        history.event("high_watermark", 11, topic=topic, offset=5)
    history.mark(schema.ENDED, 100)
    history.write(tmp_path)
    policy = parse_policy([], ["2=+40ms"])
    account = replayed(tmp_path, UNCHANGED, policy)
    assert [note for note in account.notes() if "pushed high watermark" in note] == [
        "replica 2=+40ms: 1 pushed high watermark left out: they follow from the replicas there",
        (
            "replica 2=+40ms: 1 pushed high watermark kept, of partitions whose in-sync set is not known: no replica "
            "can matter there"
        ),
    ]
    waits = {row["topic"]: row["replayed_waited_ms"] for row in replayed_rows(tmp_path, policy)}
    assert waits == {"orders": 48, "audit": 9}
