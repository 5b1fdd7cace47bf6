"""The account of an intake: rows are used or set aside, and what is inconsistent is named with a reason."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from purgatory_pipeline.analytics.archive import intake_account as names
from purgatory_pipeline.analytics.archive import survey
from purgatory_pipeline.analytics.archive.accounting import account
from purgatory_pipeline.analytics.archive.catalog import find_archive
from purgatory_pipeline.analytics.archive.intake_account import IntakeAccount
from purgatory_pipeline.errors import ArchiveUnusable
from pyspark.sql import SparkSession
from rich.console import Console

from purgatory.extensions.archive import layout, schema
from tests.pipeline.archive.histories import START, History, small_history, write_file

pytestmark = pytest.mark.slow  # each asks Spark

TakeIn = Callable[..., IntakeAccount]


@pytest.fixture
def taken_in(spark: SparkSession, tmp_path: Path) -> TakeIn:
    """The account of the archive in the test's folder; arguments are those of `account`."""

    def take(**arguments: Any) -> IntakeAccount:  # noqa: ANN401 -- as `account` takes them
        return account(spark, find_archive(str(tmp_path)), **arguments)

    return take


def at(at_ms: int) -> datetime:
    return START + timedelta(milliseconds=at_ms)


def found(taken: IntakeAccount) -> dict[str, int]:
    return {finding.name: finding.count for finding in taken.findings}


def test_whole_history_has_nothing_to_say(taken_in: TakeIn, tmp_path: Path) -> None:
    """Every row of an intact history is used, and there are no findings."""
    history = small_history(operations=50)
    history.write(tmp_path, rows_per_file=7)
    taken = taken_in()
    assert taken.rows_in() == taken.rows_used() == sum(len(rows) for rows in history.rows.values())
    assert [line.reason for line in taken.lines] == [survey.USED] * len(schema.TABLES)
    assert taken.findings == ()
    assert taken.notes() == []
    assert [(run.run_id, run.state, run.started_at) for run in taken.runs] == [("run-a", schema.ENDED, START)]


def test_sums_are_printed(taken_in: TakeIn, tmp_path: Path) -> None:
    """In = used + set aside, in the table and in one line below it, followed by the findings."""
    paths = small_history(ended=False).write(tmp_path)
    copied = tmp_path / schema.EVENTS / "copy.parquet"
    copied.write_bytes(next(path for path in paths if schema.EVENTS in path.parts).read_bytes())
    broken = tmp_path / schema.CALLS / "broken.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"PAR1")
    console = Console(width=120)
    with console.capture() as shown:
        taken_in().print(console)
    printed = shown.get()
    assert "in 81 rows = used 61 + set aside 20" in printed
    assert "1 open" in printed
    assert any(line.split() == ["events", "copy", "of", "another", "file", "1", "20"] for line in printed.splitlines())
    assert any(line.split() == ["calls", "unreadable", "1", "?"] for line in printed.splitlines())


LOST = {schema.OUTCOMES: slice(3, 6), schema.REGISTRATIONS: slice(8, 9)}


def mark_lost(history: History) -> None:
    history.mark(schema.DROPPED, 90, table=schema.OUTCOMES, rows=3, last_call_number=20)
    history.mark(schema.DROPPED, 90, table=schema.REGISTRATIONS, rows=1, last_call_number=30)


def add_wide(history: History) -> None:
    """An operation of three items."""
    call = history.calls + 1
    for item in range(3):
        history.register(99, 500, item=item, item_count=3, partition=item, **({"call_number": call} if item else {}))
    for item in range(3):
        history.end(99, 510, waited_ms=10, item=item, item_count=3, partition=item)


@pytest.mark.parametrize(
    ("more", "lost", "expected"),
    [
        pytest.param(lambda history: history.register(98, 400), {}, {names.OUTCOME_MISSING: 1}, id="no known reason"),
        pytest.param(lambda _: None, LOST, {names.OUTCOME_MISSING: 3, names.REGISTRATION_MISSING: 1}, id="both ends"),
        pytest.param(
            mark_lost,
            LOST,
            {names.OUTCOME_DROPPED: 3, names.REGISTRATION_DROPPED: 1, names.DROPPED: 4},
            id="a marker says that rows were dropped",
        ),
        pytest.param(lambda history: history.register(3, 500), {}, {names.REPEATED: 1}, id="registered twice"),
        pytest.param(lambda history: history.end(3, 500, waited_ms=470), {}, {names.REPEATED: 1}, id="ended twice"),
        pytest.param(lambda history: history.register(98, 500, refusal_code=3), {}, {}, id="refused: lacks nothing"),
        pytest.param(add_wide, {}, {}, id="several items are one operation"),
    ],
)
def test_operations_without_both_ends_are_named(
    taken_in: TakeIn,
    tmp_path: Path,
    more: Callable[[History], None],
    lost: dict[str, slice],
    expected: dict[str, int],
) -> None:
    """In a run that ended, each operation has one registration and one outcome, or is counted with the reason.

    Both ends may be in files far apart.
    """
    history = small_history(operations=40)
    for table, rows in lost.items():
        del history.rows[table][rows]
    more(history)
    history.write(tmp_path, rows_per_file=10)
    taken = taken_in()
    assert found(taken) == expected
    assert len(taken.notes()) == len(expected)


def test_missing_outcomes_of_a_run_that_is_alive_are_pending(taken_in: TakeIn, tmp_path: Path) -> None:
    """Registrations without outcome in a run that has not ended are still waiting, and unfinished files are counted and
    not read: ordinary findings.
    """
    history = small_history(ended=False)
    history.register(98, 400)
    history.write(tmp_path)
    unfinished = tmp_path / layout.unfinished_path(schema.EVENTS, "run-a", 2)
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"PAR1 half a file")
    (tmp_path / layout.running_path("run-a")).write_text("{}")
    taken = taken_in()
    assert found(taken) == {names.PENDING: 1, names.UNFINISHED: 1}
    assert taken.notes() == []


def test_outcomes_older_than_what_is_kept_are_rolled_away(taken_in: TakeIn, tmp_path: Path) -> None:
    """Old files were deleted: outcomes of operations they registered count, and are told apart from losses."""
    history = small_history()
    for number in (91, 92):
        history.end(number, 230 + number, waited_ms=230 + number - 15)
    paths = history.write(tmp_path, rows_per_file=5)
    next(path for path in paths if schema.REGISTRATIONS in path.parts).unlink()
    assert found(taken_in()) == {names.ROLLED_AWAY: 7}


def test_what_a_journal_kept_over_a_restart_is_told_apart(taken_in: TakeIn, tmp_path: Path) -> None:
    """Waits registered in one run that ended in the daemon's next run are named on both sides."""
    first, second = History("run-a"), History("run-b", start=START + timedelta(hours=1))
    first.mark(schema.STARTED, detail=json.dumps({"version": "1", "journal": True}))
    for number in (1, 2, 3):
        first.register(number, 10)
    first.end(1, 15, waited_ms=5)
    first.mark(schema.ENDED, 20)
    first.write(tmp_path)
    second.mark(schema.STARTED, detail=json.dumps({"version": "1", "journal": True, "continued": True}))
    for number in (2, 3):
        second.end(number, 10 * number, waited_ms=3_600_000)
    second.register(4, 30)
    second.end(4, 35, waited_ms=5)
    second.mark(schema.ENDED, 40)
    second.write(tmp_path)
    taken = taken_in()
    assert found(taken) == {names.KEPT: 2, names.EARLIER_RUN: 2}
    assert taken.notes() == []


def test_ends_in_a_file_that_was_set_aside_are_named_so(taken_in: TakeIn, tmp_path: Path) -> None:
    """A truncated file of outcomes explains the operations that lack theirs."""
    paths = small_history().write(tmp_path, rows_per_file=5)
    outcomes = [path for path in paths if schema.OUTCOMES in path.parts]
    outcomes[1].write_bytes(outcomes[1].read_bytes()[:-100])
    assert found(taken_in()) == {names.OUTCOME_SET_ASIDE: 5}


def test_missing_outcomes_of_a_run_that_crashed_are_told_apart(taken_in: TakeIn, tmp_path: Path) -> None:
    """A later run's marker says that an earlier one crashed: its operations without outcome are named as such.

    The later run has outcomes of the same sessions and operations, but they are numbered by run.
    """
    crashed = small_history("run-a", ended=False)
    del crashed.rows[schema.OUTCOMES][-1]
    crashed.write(tmp_path)
    later = small_history("run-b")
    later.mark(schema.CRASHED, 400, run_id="run-a", call_number=crashed.calls)
    later.write(tmp_path)
    taken = taken_in()
    assert found(taken) == {names.CRASHED: 1, names.CRASHES: 1}
    assert {run.run_id: run.state for run in taken.runs} == {"run-a": schema.CRASHED, "run-b": schema.ENDED}
    assert any("run-a" in note for note in taken.notes())


def test_clocks_that_went_back_are_counted(taken_in: TakeIn, tmp_path: Path) -> None:
    """Steps back from one call to the next, within a file and between two, with the deepest; rows stay."""
    history = History()
    for number, (time_ms, at_ms) in enumerate([(10, 10), (20, 5), (15, 15), (30, 30), (26, 22), (40, 40)], 1):
        history.register(number, time_ms, at=at(at_ms))
        history.end(number, time_ms, at=at(at_ms))
    history.write(tmp_path, rows_per_file=4)
    taken = taken_in()
    assert found(taken) == {names.TIME_FELL: 4, names.WALL_FELL: 4}
    assert "up to 5 ms" in taken.findings[0].meaning
    assert "up to 8 ms" in taken.findings[1].meaning
    assert taken.rows_used() == 12


def test_repeated_operations_and_rows_are_told_apart(taken_in: TakeIn, tmp_path: Path) -> None:
    """The same row in two files is used once; an operation that ended twice, in two calls, is reported."""
    history = small_history()
    rows = history.rows[schema.OUTCOMES]
    history.rows[schema.OUTCOMES] = [*rows[:12], *rows[8:]]
    history.end(20, 300, waited_ms=100)
    history.write(tmp_path, rows_per_file=12)
    taken = taken_in()
    assert found(taken) == {names.REPEATED: 1}
    assert (taken.rows_in(schema.OUTCOMES), taken.rows_used(schema.OUTCOMES)) == (25, 21)
    assert names.TWICE in [line.reason for line in taken.lines if line.table == schema.OUTCOMES]


def test_window_and_topics_are_accounted_for(spark: SparkSession, taken_in: TakeIn, tmp_path: Path) -> None:
    """Rows outside the window or of other topics are set aside; what is used is what `read` returns."""
    history = small_history(operations=40)
    history.register(90, 195, topic="payments")
    history.end(90, 215, waited_ms=20, topic="payments")
    history.write(tmp_path, rows_per_file=11)
    chosen: dict[str, Any] = {"since": at(100), "until": at(203), "topics": ["orders"]}
    taken = taken_in(**chosen)
    archive = find_archive(str(tmp_path))
    for table in schema.TABLES:
        assert taken.rows_used(table) == archive.read(spark, table, **chosen).count()
        assert taken.rows_in(table) == len(history.rows[table])
    reasons = {line.reason for line in taken.lines if line.table == schema.REGISTRATIONS}
    assert reasons == {survey.USED, survey.OUTSIDE, survey.OTHER_TOPIC}


def test_operation_that_ends_behind_the_window_has_its_outcome(taken_in: TakeIn, tmp_path: Path) -> None:
    """An operation registered in the window may end after it, and one that ended in it may be older: neither lacks an
    end.

    Nor does one whose wall clock jumped over the window's border in between.
    """
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
    assert found(taken_in(since=at(100), until=at(203))) == {names.WALL_FELL: 1, names.EARLIER: 1}


def test_damage_behind_a_right_footer_is_one_clear_error(taken_in: TakeIn, tmp_path: Path) -> None:
    """A file with overwritten pages cannot be set aside by its footer: the error names it and what to do."""
    history = small_history(operations=500)
    history.write(tmp_path)
    path = write_file(tmp_path, schema.OUTCOMES, history.rows[schema.OUTCOMES])
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(ArchiveUnusable, match=r"move it out of the archive") as raised:
        taken_in()
    assert path.name in str(raised.value)
