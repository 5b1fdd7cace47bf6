"""Histories with a gap: a daemon that was killed, a file that is missing, rows that are there twice."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from purgatory_pipeline.analytics.archive import intake_account as names
from purgatory_pipeline.analytics.archive import survey
from purgatory_pipeline.analytics.archive.accounting import account
from purgatory_pipeline.analytics.archive.catalog import find_archive
from purgatory_pipeline.notebook import report
from pyspark.sql import SparkSession

from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.run_details import RunDetails
from tests.pipeline.archive.histories import START, History, small_history, write_file

pytestmark = pytest.mark.slow  # each asks Spark


def started(history: History, at_ms: int = 0, *, continued: bool = False) -> History:
    """The beginning of a run with a journal."""
    history.mark(schema.STARTED, at_ms, detail=RunDetails("1", journal=True, continued=continued).to_json())
    return history


def found(spark: SparkSession, folder: Path) -> dict[str, int]:
    return {finding.name: finding.count for finding in account(spark, find_archive(str(folder))).findings}


def test_waits_that_a_journal_kept_over_a_kill_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """Registered in the run that was killed and ended in the next: neither lost nor carried in, and one wait of its
    whole length in the curve. One whose end the journal did not record in time ends in both runs, and counts once.
    """
    first = started(History("run-a"))
    for number in range(1, 41):
        first.register(number, 10 * number, timeout_ms=60_000)
    for number in range(1, 12):
        first.end(number, 10 * number + 5, waited_ms=5)
    first.register(1, 400, session_number=0, session_id="", timeout_ms=60_000)  # a unary wait: it ends with its daemon
    first.mark(schema.CRASHED, 410)
    second = started(History("run-b", START), 1_000, continued=True)
    second.register(1, 1_500, session_number=0, session_id="", timeout_ms=60_000)
    second.end(1, 1_600, session_number=0, session_id="", waited_ms=100)
    for number in range(11, 41):
        second.end(number, 2_000, waited_ms=2_000 - 10 * number)
    second.mark(schema.ENDED, 2_100)
    for history in (first, second):
        history.write(tmp_path)
    assert found(spark, tmp_path) == {names.CRASHES: 1, names.KEPT: 29, names.EARLIER_RUN: 30, names.CRASHED: 1}
    made = report(spark, str(tmp_path))
    assert made.totals["registered"] == 42
    assert (made.totals["ended"], made.totals["unfinished"], made.totals["carried_in"]) == (41, 1, 0)
    (all_topics,) = made.tables["advice"].where("kind = 'produce' and topic is null").collect()
    assert all_topics["operations"] == 42
    made.release()


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_file_is_found(spark: SparkSession, tmp_path: Path, missing: int) -> None:
    """The first, one in between, or the last: the end of a run says how many files it has."""
    history = small_history(operations=30, ended=False)
    history.mark(schema.ENDED, 400, detail=json.dumps({"files": {schema.EVENTS: 3}}))
    paths = history.write(tmp_path, rows_per_file=10)
    assert found(spark, tmp_path) == {}
    (gone,) = [
        path for path in paths if path.name == layout.file_name("run-a", missing) and schema.EVENTS in path.parts
    ]
    gone.unlink()
    taken = account(spark, find_archive(str(tmp_path)))
    (finding,) = taken.findings
    assert (finding.name, finding.count) == (names.FILES_MISSING, 1)
    assert f"events {missing} of run-a" in finding.meaning
    assert taken.notes(), "the report's page says so too"


def test_files_that_were_rolled_away_are_not_missing(spark: SparkSession, tmp_path: Path) -> None:
    """Where the beginning of a run is no longer there, nor are its first files."""
    history = small_history(operations=30)
    del history.rows[schema.MARKERS][0]
    for path in history.write(tmp_path, rows_per_file=10):
        if path.name == layout.file_name("run-a", 1) and schema.MARKERS not in path.parts:
            path.unlink()
    assert names.FILES_MISSING not in found(spark, tmp_path)


@pytest.mark.parametrize("table", [schema.REGISTRATIONS, schema.OUTCOMES, schema.EVENTS])
def test_rows_that_are_twice_in_one_file_count_once(spark: SparkSession, tmp_path: Path, table: str) -> None:
    """They are counted as duplicates, and left out of what is read."""
    history = small_history(operations=20)
    history.write(tmp_path)
    rows = history.rows[table]
    write_file(tmp_path, table, [*rows, *rows[3:8]])
    archive = find_archive(str(tmp_path))
    taken = account(spark, archive)
    assert taken.findings == ()
    twice = [line for line in taken.lines if line.reason != survey.USED]
    assert [(line.table, line.reason, line.rows) for line in twice] == [(table, names.TWICE, 5)]
    assert taken.rows_used(table) == len(rows)
    assert replace(archive, doubled=taken.doubled).read(spark, table).count() == len(rows)
