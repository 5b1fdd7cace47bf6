"""The account of an archive: each row is used or set aside, and each inconsistency is counted with its reason. Spark
reads the rows that were used.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from purgatory_pipeline.archive import accounting, survey
from purgatory_pipeline.archive.accounting import IntakeAccount, account, missing_files
from purgatory_pipeline.archive.catalog import find_archive, spark_schema
from purgatory_pipeline.archive.daemon_runs import read_runs
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.notebook import report
from purgatory_pipeline.spark.spark_session import SMALL_ROWS
from pyspark.sql import SparkSession

from purgatory.engine.calls import CancelAll, CancelName
from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.run_details import RunDetails
from tests.pipeline.archive.histories import START, History, small_history, write_file

pytestmark = pytest.mark.slow  # each asks Spark

TakeIn = Callable[..., IntakeAccount]
Change = Callable[[History], object]


@pytest.fixture
def taken_in(spark: SparkSession, tmp_path: Path) -> TakeIn:
    """The account of the archive in the test's folder, with the arguments of `account`."""

    def take(**arguments: Any) -> IntakeAccount:  # noqa: ANN401 -- as `account` takes them
        return account(spark, find_archive(str(tmp_path)), **arguments)

    return take


def at(at_ms: int) -> datetime:
    return START + timedelta(milliseconds=at_ms)


def found(taken: IntakeAccount) -> dict[str, int]:
    return {finding.name: finding.count for finding in taken.findings}


def test_an_intact_history_has_no_findings(taken_in: TakeIn, tmp_path: Path) -> None:
    history = small_history(operations=50)
    history.write(tmp_path, rows_per_file=7)
    taken = taken_in()
    assert taken.rows_in() == taken.rows_used() == sum(len(rows) for rows in history.rows.values())
    assert [line.reason for line in taken.lines] == [survey.USED] * len(schema.TABLES)
    assert (taken.findings, taken.notes()) == ((), [])
    assert [(run.run_id, run.state, run.started_at) for run in taken.runs] == [("run-a", schema.ENDED, START)]


def lose_both_ends(history: History) -> None:
    del history.rows[schema.OUTCOMES][3:6]
    del history.rows[schema.REGISTRATIONS][8:9]


def drop_both_ends(history: History) -> None:
    lose_both_ends(history)
    history.mark(schema.DROPPED, 90, table=schema.OUTCOMES, rows=3, last_call_number=20)
    history.mark(schema.DROPPED, 90, table=schema.REGISTRATIONS, rows=1, last_call_number=30)


def add_three_items(history: History) -> None:
    call = history.calls + 1
    for item in range(3):
        history.register(99, 500, item=item, item_count=3, partition=item, **({"call_number": call} if item else {}))
    for item in range(3):
        history.end(99, 510, waited_ms=10, item=item, item_count=3, partition=item)


def crash(history: History) -> None:
    """Lose the last outcome and the end."""
    del history.rows[schema.OUTCOMES][-1], history.rows[schema.MARKERS][-1]


CHANGES: list[tuple[Change, dict[str, int]]] = [
    (lambda history: history.register(98, 400), {accounting.OUTCOME_MISSING: 1}),
    (lose_both_ends, {accounting.OUTCOME_MISSING: 3, accounting.REGISTRATION_MISSING: 1}),
    (drop_both_ends, {accounting.OUTCOME_DROPPED: 3, accounting.REGISTRATION_DROPPED: 1, accounting.DROPPED: 4}),
    (lambda history: history.register(3, 500), {accounting.REPEATED: 1}),
    (lambda history: history.end(3, 500, waited_ms=470), {accounting.REPEATED: 1}),
    (lambda history: history.register(98, 500, refusal_code=3), {}),
    (add_three_items, {}),
    (crash, {accounting.CRASHED: 1, accounting.CRASHES: 1}),
]


@pytest.mark.parametrize("small_rows", [0, SMALL_ROWS])
def test_operations_without_both_ends_are_counted_by_reason(
    small_rows: int, taken_in: TakeIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs have the same sessions and operations, and both ends may be in files far apart. Executors find as much
    as the driver, which reads few rows.
    """
    monkeypatch.setattr(accounting, "SMALL_ROWS", small_rows)
    expected: Counter[str] = Counter()
    for number, (change, findings) in enumerate(CHANGES):
        history = small_history(f"run-{number}", operations=40)
        change(history)
        history.write(tmp_path, rows_per_file=10)
        expected.update(findings)
    later = small_history("run-later")  # it found that the last run had crashed
    later.mark(schema.CRASHED, 600, run_id=history.run_id, call_number=history.calls)
    later.write(tmp_path)
    taken = taken_in()
    assert found(taken) == expected
    assert len(taken.notes()) == len(expected)
    states = {run.run_id: run.state for run in taken.runs}
    assert states == dict.fromkeys(states, schema.ENDED) | {history.run_id: schema.CRASHED}


def test_operations_of_a_live_run_are_pending(taken_in: TakeIn, tmp_path: Path) -> None:
    """Registrations without outcome are ordinary in a run that has not ended, and so are unfinished files."""
    history = small_history(ended=False)
    history.register(98, 400)
    history.write(tmp_path)
    unfinished = tmp_path / layout.unfinished_path(schema.EVENTS, "run-a", 2)
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"PAR1 half a file")
    (tmp_path / layout.running_path("run-a")).write_text("{}")
    taken = taken_in()
    assert found(taken) == {accounting.PENDING: 1, accounting.UNFINISHED: 1}
    assert taken.notes() == []


def test_missing_and_damaged_files_are_reasons(taken_in: TakeIn, tmp_path: Path) -> None:
    """Outcomes of operations in a deleted old file count as rolled away; a truncated file explains missing outcomes."""
    history = small_history()
    for number in (91, 92):
        history.end(number, 230 + number, waited_ms=230 + number - 15)
    paths = history.write(tmp_path, rows_per_file=5)
    next(path for path in paths if schema.REGISTRATIONS in path.parts).unlink()
    others = small_history("run-b").write(tmp_path, rows_per_file=5)
    truncated = [path for path in others if schema.OUTCOMES in path.parts][1]
    truncated.write_bytes(truncated.read_bytes()[:-100])
    assert found(taken_in()) == {accounting.ROLLED_AWAY: 7, accounting.OUTCOME_SET_ASIDE: 5}


def test_waits_that_a_journal_kept_over_a_kill_count_once(
    spark: SparkSession, taken_in: TakeIn, tmp_path: Path
) -> None:
    """A wait registered in the run that was killed and ended in the next has one wait of its whole length in the curve.

    A wait whose end the journal did not record in time ends in both runs, and counts once.
    """
    first, second = History("run-a"), History("run-b", START)
    first.mark(schema.STARTED, 0, detail=RunDetails("1", journal=True).to_json())
    for number in range(1, 41):
        first.register(number, 10 * number, timeout_ms=60_000)
    for number in range(1, 12):
        first.end(number, 10 * number + 5, waited_ms=5)
    unary: dict[str, Any] = {"session_number": 0, "session_id": ""}  # a unary wait ends with its daemon
    first.register(1, 400, timeout_ms=60_000, **unary)
    first.mark(schema.CRASHED, 410)
    second.mark(schema.STARTED, 1_000, detail=RunDetails("1", journal=True, continued=True).to_json())
    second.register(1, 1_500, timeout_ms=60_000, **unary)
    second.end(1, 1_600, waited_ms=100, **unary)
    for number in range(11, 41):
        second.end(number, 2_000, waited_ms=2_000 - 10 * number)
    second.mark(schema.ENDED, 2_100)
    for history in (first, second):
        history.write(tmp_path)
    assert found(taken_in()) == {
        accounting.CRASHES: 1,
        accounting.KEPT: 29,
        accounting.EARLIER_RUN: 30,
        accounting.CRASHED: 1,
    }
    made = report(spark, str(tmp_path))
    assert [made.totals[name] for name in ("registered", "ended", "unfinished", "carried_in")] == [42, 41, 1, 0]
    (all_topics,) = made.tables["advice"].where("kind = 'produce' and topic is null").collect()
    assert all_topics["operations"] == 42
    made.release()


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_missing_file_is_found(tmp_path: Path, missing: int) -> None:
    history = small_history(operations=30, ended=False)
    history.mark(schema.ENDED, 400, detail=json.dumps({"files": {schema.EVENTS: 3}}))
    for path in history.write(tmp_path, rows_per_file=10):
        if path.name == layout.file_name("run-a", missing) and schema.EVENTS in path.parts:
            path.unlink()
    archive = find_archive(str(tmp_path))
    finding = missing_files(read_runs(archive), archive)
    assert (finding.count, finding.is_ordinary) == (int(missing > 0), False)
    assert finding.meaning.startswith(f"events {missing} of run-a;" if missing else ";")


def test_files_that_were_rolled_away_are_not_missing(tmp_path: Path) -> None:
    history = small_history(operations=30)
    del history.rows[schema.MARKERS][0]
    for path in history.write(tmp_path, rows_per_file=10):
        if path.name == layout.file_name("run-a", 1) and schema.MARKERS not in path.parts:
            path.unlink()
    archive = find_archive(str(tmp_path))
    assert missing_files(read_runs(archive), archive).count == 0


def test_clocks_that_went_back_are_counted(taken_in: TakeIn, tmp_path: Path) -> None:
    history = History()
    for number, (time_ms, at_ms) in enumerate([(10, 10), (20, 5), (15, 15), (30, 30), (26, 22), (40, 40)], 1):
        history.register(number, time_ms, at=at(at_ms))
        history.end(number, time_ms, at=at(at_ms))
    history.write(tmp_path, rows_per_file=4)
    taken = taken_in()
    assert found(taken) == {accounting.TIME_FELL: 4, accounting.WALL_FELL: 4}
    assert "up to 5 ms" in taken.findings[0].meaning
    assert "up to 8 ms" in taken.findings[1].meaning
    assert taken.rows_used() == 12


def test_repeated_rows_are_used_once(spark: SparkSession, taken_in: TakeIn, tmp_path: Path) -> None:
    """The same rows in two files, or twice in one, are duplicates; an operation that ended twice is a finding."""
    history = small_history()
    rows = history.rows[schema.OUTCOMES]
    history.rows[schema.OUTCOMES] = [*rows[:12], *rows[8:]]
    history.end(20, 300, waited_ms=100)
    history.write(tmp_path, rows_per_file=12)
    for table in (schema.REGISTRATIONS, schema.EVENTS):
        one = history.rows[table]
        for path in (tmp_path / table).rglob("*.parquet"):
            path.unlink()
        write_file(tmp_path, table, [*one, *one[3:8]])
    taken = taken_in()
    assert found(taken) == {accounting.REPEATED: 1}
    twice = {line.table: line.rows for line in taken.lines if line.reason == accounting.TWICE}
    assert twice == {schema.OUTCOMES: 4, schema.REGISTRATIONS: 5, schema.EVENTS: 5}
    archive = replace(find_archive(str(tmp_path)), doubled=taken.doubled)
    assert len(archive.overlapping(schema.OUTCOMES)) == 2
    for table, used in {schema.OUTCOMES: 21, schema.REGISTRATIONS: 20, schema.EVENTS: 20}.items():
        assert taken.rows_used(table) == archive.read(spark, table).count() == used


def test_every_table_reads_with_its_own_columns_from_any_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Spaces, percent signs and the characters of Spark's path patterns have no special meaning in its name."""
    history = small_history()
    root = tmp_path / "a [b]{c}* d%20é"
    history.write(root, rows_per_file=7)
    archive = find_archive(str(root))
    for table in schema.TABLES:
        frame = archive.read(spark, table)
        assert frame.schema == spark_schema(table)
        assert frame.count() == len(history.rows[table]) == sum(file.rows for file in archive.files(table))


def test_window_and_topics_are_accounted_for(spark: SparkSession, taken_in: TakeIn, tmp_path: Path) -> None:
    history = small_history(operations=40)
    history.register(90, 195, topic="payments")
    history.end(90, 215, waited_ms=20, topic="payments")
    for call, topic in ((CancelAll, None), (CancelName, "orders"), (CancelName, "payments")):
        history.add(schema.CALLS, 150, call=schema.CALL_NAMES[call], topic=topic)
    history.write(tmp_path, rows_per_file=11)
    chosen: dict[str, Any] = {"since": at(100), "until": at(200).replace(tzinfo=None), "topics": ["orders"]}
    taken = taken_in(**chosen)
    archive = find_archive(str(tmp_path))
    registered = archive.read(spark, schema.REGISTRATIONS, **chosen).collect()
    assert sorted(row.time_ms for row in registered) == [*range(100, 200, 10)]
    calls = archive.read(spark, schema.CALLS, **chosen).collect()
    assert sorted(row.call for row in calls) == [schema.CALL_NAMES[CancelAll], schema.CALL_NAMES[CancelName]]
    for table in schema.TABLES:
        assert taken.rows_used(table) == archive.read(spark, table, **chosen).count()
        assert taken.rows_in(table) == len(history.rows[table])
    reasons = {line.reason for line in taken.lines if line.table == schema.REGISTRATIONS}
    assert reasons == {survey.USED, survey.OUTSIDE, survey.OTHER_TOPIC}


def test_operations_over_the_edge_of_a_window_have_both_ends(taken_in: TakeIn, tmp_path: Path) -> None:
    """An operation may be registered before the window or end after it, or its wall clock may jump over the edge."""
    history = History()
    history.register(1, 50)
    history.register(2, 105)
    history.register(3, 110, at=at(99))
    history.end(1, 120, waited_ms=70)
    history.register(4, 195)
    history.end(2, 200, waited_ms=95)
    history.end(3, 250, waited_ms=140)
    history.end(4, 350, waited_ms=155)
    history.write(tmp_path)
    assert found(taken_in(since=at(100), until=at(203))) == {accounting.WALL_FELL: 1, accounting.EARLIER: 1}


def test_a_damaged_page_is_one_clear_error(taken_in: TakeIn, tmp_path: Path) -> None:
    history = small_history(operations=500)
    history.write(tmp_path)
    path = write_file(tmp_path, schema.OUTCOMES, history.rows[schema.OUTCOMES])
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(ArchiveUnusable, match=r"move it out of the archive") as raised:
        taken_in()
    assert path.name in str(raised.value)
