"""Streams over old files, over rows from the future, and after a run that was killed before a commit."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.cli import main
from purgatory_pipeline.stream.shard_task import write_part
from pyspark.sql import SparkSession

from tests.pipeline.conftest import worker_environment
from tests.pipeline.stream.simulated_history import SimulatedHistory, outcomes_of
from tests.pipeline.stream.stream_folders import StreamFolders
from tests.pipeline.stream.test_stream_query import DELAY_MS, run

OLD_S = 1_600_000_000


@pytest.mark.slow  # asks Spark
def test_old_files_are_read_and_rows_from_the_future_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    """A file modified years before the newest counts like any other. A row dated far ahead of the clock is set aside
    with the reason, and time does not move because of it: nothing expires, and nothing that comes later is late.
    """
    history = SimulatedHistory.of_seed(7, 600)
    folders = StreamFolders(tmp_path)
    first, second = folders.slices(history.rows, 2)
    future_ms = 4_102_444_800_000  # 2100
    folders.write([*first, {"at_ms": future_ms}])
    folders.write(second)
    folders.write([{"at_ms": history.end_ms + DELAY_MS}])
    for path in (folders.registrations / "00000.parquet", folders.events / "00000.parquet"):
        os.utime(path, (OLD_S, OLD_S))
    run(spark, folders)
    assert sorted(map(repr, folders.outcomes())) == sorted(map(repr, history.outcomes))
    assert folders.rows("late").num_rows == 0
    (ahead,) = [row for row in folders.rows("quarantine").to_pylist() if row["at_ms"] == future_ms]
    assert "more than --max-ahead later than the clock" in ahead["reason"]


@pytest.mark.slow  # asks Spark
@pytest.mark.parametrize("table", ["", "killed"])
def test_a_batch_done_again_with_another_delay_replaces_all_of_itself(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    """A run was killed after it had written a batch and before the commit. The next run has a longer delay, so the same
    batch has fewer outcomes and they come later: each is there once.
    """
    history = SimulatedHistory.of_seed(7, 600)
    folders = StreamFolders(tmp_path)
    results = f"table:{table}" if table else ""
    for part in folders.slices(history.rows, 2):
        folders.write(part)
    if table:
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    run(spark, folders, results=results)
    for log in ("commits/1", "commits/.1.crc"):
        (folders.results / "_checkpoint" / log).unlink(missing_ok=True)
    write_part(str(folders.results / "late"), 1, 9, pa.table({"of": ["the run that was killed"]}))
    long_ms = 10 * (history.end_ms - history.rows[0]["at_ms"])
    folders.write([{"at_ms": history.end_ms + long_ms}])
    run(spark, folders, results=results, delay_ms=long_ms)
    found = outcomes_of(spark.table(table).toArrow()) if table else folders.outcomes()
    assert sorted(map(repr, found)) == sorted(map(repr, history.outcomes))
    assert folders.rows("late").num_rows == 0
    if table:
        spark.sql(f"DROP TABLE {table}")


def test_a_table_of_a_catalog_in_memory_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with the remedy, and nothing is written: the next run would not find the table."""
    del spark
    places = [
        word
        for side in ("registrations", "events", "checkpoint", "quarantine")
        for word in (f"--{side}", str(tmp_path))
    ]
    assert main(["stream", *places, "--results", "table:outcomes", "--once"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "catalog is in memory" in line
    assert "--conf spark.sql.catalogImplementation=hive" in line
    assert list(tmp_path.iterdir()) == []


RUN_TWICE = """
import sys
from purgatory_pipeline.cli import main
code = main(sys.argv[1:])
print("the first run has ended", flush=True)
input()
sys.exit(code or main(sys.argv[1:]))
"""


@pytest.mark.slow  # a process with a Spark and a Hive
@pytest.mark.usefixtures("java")
def test_a_table_of_a_persistent_catalog_grows_from_run_to_run(tmp_path: Path) -> None:
    """The command runs twice, each time with a session of its own, and the second run adds the outcomes of its new
    input.
    """
    history = SimulatedHistory.of_seed(2, 200)
    folders = StreamFolders(tmp_path)
    warehouse = tmp_path / "warehouse"
    derby = f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
    conf = {
        "spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": warehouse, "spark.master": "local[1]",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby, "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
    }  # fmt: skip
    command = [
        sys.executable, "-c", RUN_TWICE, "stream", "--registrations", str(folders.registrations),
        "--events", str(folders.events), "--results", "table:outcomes", "--checkpoint", str(tmp_path / "checkpoint"),
        "--quarantine", str(folders.results), "--delay", f"{DELAY_MS}ms", "--once",
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
    ]  # fmt: skip
    first, second = folders.slices(history.rows, 2)
    folders.write(first)
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **worker_environment()}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        printed = list(itertools.takewhile(lambda line: line != "the first run has ended\n", process.stdout))
        folders.write([*second, {"at_ms": history.end_ms + DELAY_MS}])
        rest, _ = process.communicate("\n")
    assert process.returncode == 0, "".join([*printed, rest])[-2_000:]
    files = sorted(warehouse.rglob("batch=*/*.parquet"))
    assert {file.parent.name for file in files} == {"batch=0", "batch=1"}
    found = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    assert sorted(map(repr, outcomes_of(found))) == sorted(map(repr, history.outcomes))
