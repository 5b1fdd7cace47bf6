"""The report against the ground truth of a generated history."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from purgatory_pipeline.generate.history_plan import make_plan
from purgatory_pipeline.generate.make_archive import make_archive
from purgatory_pipeline.generate.truth_summary import summarize
from purgatory_pipeline.report.command import report
from purgatory_pipeline.report.report_tables import TABLES
from pyspark.sql import SparkSession

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
def test_tables_have_the_columns_they_promise(tables: dict[str, pd.DataFrame]) -> None:
    """All tables are there, with the columns of their description, and no key occurs twice."""
    for name, table in TABLES.items():
        assert list(tables[name].columns) == list(table.column_names)
        assert not tables[name].duplicated(list(table.key)).any()


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
def test_percentiles_are_those_of_the_rows(archive: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Waits by topic and kind: the smallest wait that so many of the rows do not exceed, as pandas counts it."""
    rows = read_table(archive, schema.OUTCOMES).select(["topic", "kind", "waited_ms"]).to_pandas()
    waits = rows.astype({"topic": str, "kind": str}).groupby(["topic", "kind"])["waited_ms"]
    longest = waits.max()
    topics = tables["topics"].set_index(["topic", "kind"]).loc[longest.index]
    assert (topics["wait_max_ms"] == longest).all()
    for share, name in ((0.5, "wait_p50_ms"), (0.9, "wait_p90_ms"), (0.99, "wait_p99_ms")):
        at_most = [(waits.get_group(key) <= topics.loc[key, name]).mean() for key in longest.index]
        below = [(waits.get_group(key) < topics.loc[key, name]).mean() for key in longest.index]
        assert all(part >= share - 1e-9 for part in at_most)
        assert all(part < share for part in below)


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
