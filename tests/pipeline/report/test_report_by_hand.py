"""The report and its tables hand-written in DuckDB (`bench.pipeline.report_sql`) agree, figure by figure."""

from pathlib import Path

import pandas as pd
import pytest
from purgatory_pipeline.generate.history_plan import make_plan
from purgatory_pipeline.generate.make_archive import make_archive
from purgatory_pipeline.report.command import report
from purgatory_pipeline.report.report_tables import TABLES
from pyspark.sql import SparkSession

from bench.pipeline import report_sql

BY_HAND = [name for name in TABLES if name != "intake"]
"""`intake` is about files; the hand-written `account` counts rows."""
NOT_BY_HAND = {"advice": {"sentence"}}
"""Columns that are words."""
INSTANTS = ("window_start", "at", "compared_with")


@pytest.fixture(scope="module")
def folders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An archive that lacks the last outcomes and the first registrations of a run, and its report."""
    archive, out = tmp_path_factory.mktemp("archive"), tmp_path_factory.mktemp("report")
    make_archive(spark, make_plan("30k", runs=3, seed=7), str(archive))
    for table, place in (("outcomes", -1), ("registrations", 0)):
        sorted((archive / table).rglob("*.parquet"))[place].unlink()
    report(str(archive), out=str(out), window="1h")
    return archive, out


@pytest.mark.slow  # asks Spark
def test_the_tables_say_what_duckdb_says(folders: tuple[Path, Path]) -> None:
    """Each table has the same rows with the same figures."""
    archive, out = folders
    connection = report_sql.open_history(archive)
    report_sql.make_tables(connection)
    for name in BY_HAND:
        by_hand = connection.execute(f"SELECT * FROM {name}").df()
        reported = pd.read_parquet(out / "tables" / name)
        columns = [column for column in TABLES[name].column_names if column not in NOT_BY_HAND.get(name, ())]
        pd.testing.assert_frame_equal(
            *(comparable(frame[columns], TABLES[name].key) for frame in (reported, by_hand)), obj=name
        )


def comparable(rows: pd.DataFrame, key: tuple[str, ...]) -> pd.DataFrame:
    """Sorted by key; numbers as floats, whatever their type, and instants in one time zone."""
    plain = rows.assign(
        **{name: pd.to_datetime(rows[name], utc=True).dt.as_unit("us") for name in rows if name in INSTANTS}
    )
    numbers = plain.select_dtypes(["number"]).columns
    typed = plain.astype(dict.fromkeys(numbers, "float64"))
    return typed.sort_values(list(key)).reset_index(drop=True)
