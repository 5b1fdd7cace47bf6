"""The tables of a report: against the ground truth of a generated history, and figure by figure against the same tables
hand-written in SQL for DuckDB (`bench.pipeline.report_sql`).
"""

from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from purgatory_pipeline.analytics.report.command import report
from purgatory_pipeline.analytics.report.report_tables import TABLES
from pyspark.sql import SparkSession

from bench.pipeline import report_sql
from purgatory.extensions.archive import schema
from tests.archive.archive_replay import read_table
from tests.pipeline.history.make import make_history
from tests.pipeline.history.plan import Plan

PLAN = Plan(30_000, runs=2, seed=5, slow=(3, 200, 0.20))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[int]]:
    """An archive, and how many of its produces needed how many milliseconds."""
    folder = tmp_path_factory.mktemp("archive")
    return folder, make_history(PLAN, folder)


@pytest.fixture(scope="module")
def archive(spark: SparkSession, made: tuple[Path, Counter[int]]) -> Path:
    return made[0]


@pytest.fixture(scope="module")
def tables(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """The tables that the command leaves, read back from Parquet."""
    out = tmp_path_factory.mktemp("report")
    report(str(archive), out=str(out))
    assert (out / "report.html").stat().st_size > 100_000
    assert sorted(path.stem for path in (out / "csv").glob("*.csv")) == sorted(TABLES)
    return {name: pd.read_parquet(out / "tables" / name) for name in TABLES}


@pytest.mark.slow  # asks Spark
def test_totals_in_are_totals_out(archive: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Every operation and its outcome is counted once by window, and every wait once by group and once by topic."""
    windows = tables["windows"]
    ends = ["satisfied", "failed", "expired", "cancelled", "shutting_down"]
    assert windows["registered"].sum() == PLAN.operations
    outcomes = read_table(archive, schema.OUTCOMES)
    operations = outcomes.filter(pc.field("item") == 0)["outcome"].cast(pa.string()).to_pylist()
    assert {outcome: windows[outcome].sum() for outcome in ends} == dict(Counter(operations) | Counter(failed=0))
    for name in ("groups", "topics"):
        assert tables[name]["ended"].sum() == outcomes.num_rows
        assert (tables[name][ends].sum(axis=1) == tables[name]["ended"]).all()


@pytest.mark.slow  # asks Spark
def test_the_planted_slow_replica_is_named_first(tables: dict[str, pd.DataFrame]) -> None:
    """Over all topics, the replica that held back longest is the one that was made slow."""
    overall = tables["stragglers"][tables["stragglers"]["topic"].isna()]
    worst = overall.sort_values("total_ms", ascending=False).iloc[0]
    assert worst["replica_id"] == PLAN.slow[0]


@pytest.mark.slow  # asks Spark
def test_advice_is_near_the_planted_waits(tables: dict[str, pd.DataFrame], made: tuple[Path, Counter[int]]) -> None:
    """Half, 90 % and 99 % of all produces need what they would have waited without a timeout, within 5 %."""
    advice = tables["advice"]
    produces = advice[(advice["kind"] == "produce") & advice["topic"].isna()].iloc[0]
    planted = sorted(made[1].elements())
    for percent in (50, 90, 99):
        needed = planted[-(-len(planted) * percent // 100) - 1]
        assert produces[f"need_p{percent}_ms"] == pytest.approx(needed, rel=0.05, abs=1)


@pytest.mark.slow  # asks Spark
def test_the_tables_say_what_duckdb_says(spark: SparkSession, tmp_path: Path) -> None:
    """Of a history that lacks the last outcomes and the first registrations of a run, each table has the columns of its
    description, no key twice, and the rows and figures of the one written by hand.

    `intake` is about files, and sentences are words: those are not written by hand.
    """
    archive, out = tmp_path / "archive", tmp_path / "report"
    make_history(Plan(20_000, runs=3, seed=7), archive)
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
