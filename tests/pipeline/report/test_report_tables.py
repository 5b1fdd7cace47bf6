"""The tables of a report: against the truth of a generated history, and against the same tables in SQL for DuckDB
(`bench.pipeline.report_sql`).
"""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from purgatory_pipeline.location import open_output
from purgatory_pipeline.report.command import window_for
from purgatory_pipeline.report.report_builder import ReportOptions, make_report, write_tables
from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.spark.spark_session import own_session
from pyspark.sql import SparkSession

from bench.pipeline import report_sql
from bench.pipeline.history.make import make_history
from bench.pipeline.history.plan import PROFILES, Plan
from purgatory.extensions.archive import schema
from tests.archive.archive_kit import read_table
from tests.pipeline.page.page_frames import HOSTILE

SLOW_REPLICA = 3
TOPICS = (*PROFILES[:-1], replace(PROFILES[-1], name=HOSTILE))
PLAN = Plan(3_000, runs=3, topics=TOPICS, slow=(SLOW_REPLICA, 300, 0.4))

pytestmark = pytest.mark.slow  # asks Spark


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[int]]:
    """An archive, and how many of its produces needed how many milliseconds."""
    folder = tmp_path_factory.mktemp("archive")
    return folder, make_history(PLAN, folder)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, made: tuple[Path, Counter[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    assert main(["report", str(made[0]), "--out", str(out)]) == 0
    return out


def read(out: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(out / "tables" / name)


def test_totals_add_up(made: tuple[Path, Counter[int]], tables: Path) -> None:
    """Operations and outcomes are counted once by window, waits once by group and once by topic; all files are there.

    A topic cannot add markup to the page.
    """
    windows = read(tables, "windows")
    ends = ["satisfied", "failed", "expired", "cancelled", "shutting_down"]
    assert windows["registered"].sum() == PLAN.operations
    outcomes = read_table(made[0], schema.OUTCOMES)
    operations = outcomes.filter(pc.field("item") == 0)["outcome"].cast(pa.string()).to_pylist()
    assert {outcome: windows[outcome].sum() for outcome in ends} == dict.fromkeys(ends, 0) | Counter(operations)
    for name in ("groups", "topics"):
        waits = read(tables, name)
        assert waits["ended"].sum() == outcomes.num_rows
        assert (waits[ends].sum(axis=1) == waits["ended"]).all()
    assert sorted(path.stem for path in (tables / "csv").glob("*.csv")) == sorted(TABLES)
    page = (tables / "report.html").read_text("utf-8")
    assert len(page) > 100_000
    assert HOSTILE not in page
    assert HOSTILE in read(tables, "topics")["topic"].tolist()


def test_the_slow_replica_is_named_first(tables: Path) -> None:
    stragglers = read(tables, "stragglers")
    worst = stragglers[stragglers["topic"].isna()].sort_values("total_ms", ascending=False).iloc[0]
    assert worst["replica_id"] == SLOW_REPLICA


def test_advice_is_near_the_truth(made: tuple[Path, Counter[int]], tables: Path) -> None:
    """The time that half, 90 % and 99 % of all produces need without a timeout is within 10 % (for any seed)."""
    advice = read(tables, "advice")
    produces = advice[(advice["kind"] == "produce") & advice["topic"].isna()].iloc[0]
    truth = sorted(made[1].elements())
    for percent in (50, 90, 99):
        needed = truth[-(-len(truth) * percent // 100) - 1]
        assert produces[f"need_p{percent}_ms"] == pytest.approx(needed, rel=0.1)


def test_compare_tells_two_halves_of_a_history_apart(
    made: tuple[Path, Counter[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each operation is in one of two reports; the differences of their tables are a file and a page."""
    starts = read_table(made[0], schema.REGISTRATIONS)["at"]
    middle = pc.min(starts).as_py() + (pc.max(starts).as_py() - pc.min(starts).as_py()) / 2
    instant = middle.isoformat(timespec="seconds")
    halves = [f"{made[0]}@..{instant}", f"{made[0]}@{instant}.."]
    assert main(["compare", *halves, "--window", "1s", "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "compare.html") in capsys.readouterr().out
    rows = pd.read_csv(tmp_path / "compare.csv")
    sums = [read(tmp_path / half, "windows")["registered"].sum() for half in "ab"]
    assert sum(sums) == PLAN.operations
    assert {"topics", "principals", "partitions", "advice", "timeouts"} <= set(rows["table"])


def test_the_tables_equal_those_of_duckdb(spark: SparkSession, made: tuple[Path, Counter[int]], tmp_path: Path) -> None:
    """Without the last outcomes and the first registrations, each table has its columns, no key twice, and the figures
    of the SQL.

    `intake` is about files, and sentences are words: there is no SQL for them.
    """
    archive, out = tmp_path / "archive", tmp_path / "report"
    shutil.copytree(made[0], archive)
    for name, place in ((schema.OUTCOMES, -1), (schema.REGISTRATIONS, 0)):
        sorted((archive / name).rglob("*.parquet"))[place].unlink()
    assert main(["report", str(archive), "--out", str(out), "--window", "1h", "--slo", "95%"]) == 0
    connection = report_sql.open_history(archive)
    report_sql.make_tables(connection)
    for name, table in TABLES.items():
        reported = read(out, name)
        assert list(reported.columns) == list(table.column_names)
        assert not reported.duplicated(list(table.key)).any()
        if name != "intake":
            columns = [column for column in table.column_names if column != "sentence"]
            by_sql = connection.execute(f"SELECT * FROM {name}").df()
            both = (comparable(frame[columns], table.key) for frame in (reported, by_sql))
            pd.testing.assert_frame_equal(*both, obj=name)


def test_few_rows_give_the_same_tables_by_eight_jobs(
    spark: SparkSession, made: tuple[Path, Counter[int]], tables: Path, tmp_path: Path
) -> None:
    """A session for few rows shuffles into one partition: the driver writes all tables, and nothing is broadcast."""
    session, found = own_session(spark), find_archive(str(made[0]))
    for name, value in {"shuffle.partitions": "1", "autoBroadcastJoinThreshold": "-1"}.items():
        session.conf.set(f"spark.sql.{name}", value)
    bounds = [(file.first_at, file.last_at) for file in found.used if file.first_at and file.last_at]
    options = ReportOptions(window_for(min(first for first, _ in bounds), max(last for _, last in bounds)))
    before = {*spark.sparkContext.statusTracker().getJobIdsForGroup(None)}
    registrations, outcomes, events = (found.read(session, table) for table in schema.TABLES[:3])
    report = make_report(registrations, outcomes, events, options)
    write_tables(report.computed, report.known, open_output(str(tmp_path)))
    report.release()
    assert len({*spark.sparkContext.statusTracker().getJobIdsForGroup(None)} - before) <= 8
    for name in {*TABLES} - {"intake"}:
        both = (comparable(read(out, name), TABLES[name].key) for out in (tmp_path, tables))
        pd.testing.assert_frame_equal(*both, obj=name)


def comparable(rows: pd.DataFrame, key: tuple[str, ...]) -> pd.DataFrame:
    """Rows sorted by key, with numbers as floats and instants in one time zone."""
    instants = [name for name in ("window_start", "at", "compared_with", "day") if name in rows]
    plain = rows.assign(**{name: pd.to_datetime(rows[name], utc=True).dt.as_unit("us") for name in instants})
    typed = plain.astype(dict.fromkeys(plain.select_dtypes(["number"]).columns, "float64"))
    return typed.sort_values(list(key)).reset_index(drop=True)
