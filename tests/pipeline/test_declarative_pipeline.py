"""The example of a Spark Declarative Pipeline, run by Spark's own command."""

import os
from pathlib import Path

import pytest
from purgatory_pipeline.notebook import ReportOptions, report
from pyspark.sql import SparkSession

from bench.pipeline.history.make import make_history
from bench.pipeline.history.plan import Plan
from tests.kit.programs import run_program
from tests.pipeline.conftest import ROOT, worker_environment
from tests.pipeline.standalone_cluster import HOME

SPEC = ROOT / "examples" / "declarative_pipeline" / "spark-pipeline.yml"
SLOW_MS = 200
"""As in the example."""
PERCENTILES = ("topic", "kind", "registered", "ended", "satisfied", "expired", "wait_p50_ms", "wait_p99_ms")


@pytest.mark.slow  # starts a Spark Connect server
def test_declarative_pipeline_makes_the_figures_of_the_report(spark: SparkSession, tmp_path: Path) -> None:
    """Only stragglers that made progress: the report also finds those that held produces back until they left."""
    archive = tmp_path / "archive"
    make_history(Plan(2_000, runs=2), archive)
    # TRAP: of more settings than fit into one of its variables, PySpark 4.3 passes on only the last ones.
    settings = ["--conf", f"spark.purgatory.archive={archive}", "--conf", "spark.ui.enabled=false"]
    environment = {**os.environ, **worker_environment(), "SPARK_HOME": str(HOME)}
    command = [str(HOME / "bin" / "spark-pipelines"), "run", "--spec", str(SPEC), "--remote", "local[2]", *settings]
    run_program(command, cwd=tmp_path, env=environment, timeout_s=300)
    views = {path.name: spark.read.parquet(str(path)) for path in (tmp_path / "spark-warehouse").iterdir()}
    assert sorted(views) == ["operations", "percentiles", "stragglers"]
    tables = report(spark, str(archive), ReportOptions(slow_over_ms=SLOW_MS)).tables
    assert views["operations"].count() == spark.read.parquet(str(archive / "registrations")).count()
    topics = tables["topics"].select(*PERCENTILES).collect()
    assert sorted(views["percentiles"].select(*PERCENTILES).collect()) == sorted(topics)
    held, reported = (
        {(row["topic"], row["replica_id"]): row["held_back"] for row in rows.where("topic IS NOT NULL").collect()}
        for rows in (views["stragglers"], tables["stragglers"])
    )
    causes = {row["cause"]: row["operations"] for row in tables["slow_produces"].collect()}
    assert all(count <= reported[replica] for replica, count in held.items())
    assert sum(held.values()) == causes["follower"] > 0
