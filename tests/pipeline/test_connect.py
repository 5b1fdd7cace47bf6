"""The pipeline over Spark Connect: a real server, started by PySpark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from purgatory_pipeline.cli import main
from purgatory_pipeline.notebook import replay
from pyspark.sql import SparkSession

from bench.pipeline.history.make import make_history
from bench.pipeline.history.plan import Plan
from tests.pipeline.conftest import FEW_ROWS, worker_environment

PATIENCE_S = 300
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from purgatory_pipeline.notebook import report
from purgatory_pipeline.replay.policy import UNCHANGED
from purgatory_pipeline.replay.replay_task import replay_rows
archive, out, settings = *sys.argv[1:3], json.loads(sys.argv[3])
builder = SparkSession.builder.remote("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
try:
    codes = [main(["check", archive]), main(["report", archive, "--out", out])]
    rows = replay_rows(spark, find_archive(archive), [UNCHANGED], divided_from=1)
    divided = rows.groupBy("replayed").count().collect()
    advice = report(spark, archive).tables["advice"].count()
    print(json.dumps([type(spark).__module__, codes, sorted(map(tuple, divided)), advice]), flush=True)
finally:
    spark.stop()  # with the server
"""


@pytest.mark.slow  # starts a Spark Connect server
def test_commands_over_spark_connect_give_the_same_tables(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a replay that divides a run, whose tasks need data that a `SparkContext` would broadcast."""
    make_history(Plan(400, runs=2), tmp_path / "archive")
    settings = FEW_ROWS | {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    words = [str(tmp_path / "archive"), str(tmp_path / "connect"), json.dumps(settings)]
    environment = {**os.environ, **worker_environment()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        text=True,
        capture_output=True,
        check=False,
        env=environment,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    module, codes, divided, advised = json.loads(done.stdout.splitlines()[-1])
    assert (module, codes) == ("pyspark.sql.connect.session", [0, 0])
    assert main(["report", words[0], "--out", str(tmp_path / "classic")]) == 0
    capsys.readouterr()
    rows = replay(spark, words[0]).groupBy("replayed").count().collect()
    assert [tuple(row) for row in divided] == sorted(map(tuple, rows))
    tables = {path.name: path.read_text() for path in (tmp_path / "classic" / "csv").iterdir()}
    assert {path.name: path.read_text() for path in (tmp_path / "connect" / "csv").iterdir()} == tables
    assert advised == tables["advice.csv"].count("\n") - 1
