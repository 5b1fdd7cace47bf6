"""The tables of a report: against the ground truth of a generated history, and figure by figure against the same tables
hand-written in SQL for DuckDB (`bench.pipeline.report_sql`).
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from purgatory_pipeline.generate.history_plan import make_plan
from purgatory_pipeline.generate.make_archive import make_archive
from purgatory_pipeline.generate.truth import summarize
from purgatory_pipeline.report.command import report
from purgatory_pipeline.report.report_tables import TABLES
from pyspark.sql import SparkSession

from bench.pipeline import report_sql
from purgatory.archive import schema
from tests.archive.archive_replay import read_table

PLAN = make_plan("30k", runs=2, seed=5, slow_replica="3=+200ms@20%")


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    make_archive(spark, PLAN, str(folder))
    summarize(PLAN, str(folder))
    return folder


@pytest.fixture(scope="module")
def tables(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """The tables that the command leaves, read back from Parquet."""
    out = tmp_path_factory.mktemp("report")
    report(str(archive), out=str(out))
    assert (out / "report.html").stat().st_size > 100_000
    assert sorted(path.stem for path in (out / "csv").glob("*.csv")) == sorted(TABLES)
    return {name: pd.read_parquet(out / "tables" / name) for name in TABLES}


@pytest.fixture(scope="module")
def truth(archive: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((archive / "_truth" / "truth.json").read_text())
    return told


@pytest.mark.slow  # asks Spark
def test_totals_in_are_totals_out(archive: Path, tables: dict[str, pd.DataFrame], truth: dict[str, Any]) -> None:
    """Every operation and its outcome is counted once by window, and every wait once by group and once by topic."""
    windows = tables["windows"]
    ends = ["satisfied", "failed", "expired", "cancelled", "shutting_down"]
    assert windows["registered"].sum() == PLAN.operations
    for outcome in ends:
        assert windows[outcome].sum() == sum(counts.get(outcome, 0) for counts in truth["outcomes"].values())
    outcomes = read_table(archive, schema.OUTCOMES)
    for name in ("groups", "topics"):
        assert tables[name]["ended"].sum() == outcomes.num_rows
        assert (tables[name][ends].sum(axis=1) == tables[name]["ended"]).all()


@pytest.mark.slow  # asks Spark
def test_the_planted_slow_replica_is_named_first(tables: dict[str, pd.DataFrame], truth: dict[str, Any]) -> None:
    """Over all topics, the replica that held back longest is the one that was made slow."""
    overall = tables["stragglers"][tables["stragglers"]["topic"].isna()]
    worst = overall.sort_values("total_ms", ascending=False).iloc[0]
    assert worst["replica_id"] == truth["stragglers"][0]["replica_id"] == 3


@pytest.mark.slow  # asks Spark
def test_advice_is_near_the_planted_waits(tables: dict[str, pd.DataFrame], truth: dict[str, Any]) -> None:
    """Half, 90 % and 99 % of all produces need what they would have waited without a timeout, within 5 %."""
    advice = tables["advice"]
    produces = advice[(advice["kind"] == "produce") & advice["topic"].isna()].iloc[0]
    planted = truth["produce_waits_without_timeout"][""]
    for name in ("p50", "p90", "p99"):
        assert produces[f"need_{name}_ms"] == pytest.approx(planted[name], rel=0.05, abs=1)


@pytest.mark.slow  # asks Spark
def test_the_tables_say_what_duckdb_says(spark: SparkSession, tmp_path: Path) -> None:
    """Of a history that lacks the last outcomes and the first registrations of a run, each table has the columns of its
    description, no key twice, and the rows and figures of the one written by hand.

    `intake` is about files, and sentences are words: those are not written by hand.
    """
    archive, out = tmp_path / "archive", tmp_path / "report"
    make_archive(spark, make_plan("30k", runs=3, seed=7), str(archive))
    for name, place in ((schema.OUTCOMES, -1), (schema.REGISTRATIONS, 0)):
        sorted((archive / name).rglob("*.parquet"))[place].unlink()
    report(str(archive), out=str(out), window="1h")
    connection = report_sql.open_history(archive)
    report_sql.make_tables(connection)
    for name, table in TABLES.items():
        reported = pd.read_parquet(out / "tables" / name)
        assert list(reported.columns) == list(table.column_names)
        assert not reported.duplicated(list(table.key)).any()
        if name != "intake":
            columns = [column for column in table.column_names if column != "sentence"]
            by_hand = connection.execute(f"SELECT * FROM {name}").df()
            both = (comparable(frame[columns], table.key) for frame in (reported, by_hand))
            pd.testing.assert_frame_equal(*both, obj=name)


def comparable(rows: pd.DataFrame, key: tuple[str, ...]) -> pd.DataFrame:
    """Sorted by key; numbers as floats, whatever their type, and instants in one time zone."""
    plain = rows.assign(
        **{
            name: pd.to_datetime(rows[name], utc=True).dt.as_unit("us")
            for name in rows
            if name in ("window_start", "at", "compared_with")
        }
    )
    numbers = plain.select_dtypes(["number"]).columns
    typed = plain.astype(dict.fromkeys(numbers, "float64"))
    return typed.sort_values(list(key)).reset_index(drop=True)
