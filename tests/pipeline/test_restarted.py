"""The archive of a daemon with a journal that was restarted: one history in several runs."""

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from purgatory_client import Client
from purgatory_client.batches import partition_columns
from purgatory_client.results import OperationKind
from purgatory_pipeline.analytics.archive import intake_account
from purgatory_pipeline.analytics.archive.accounting import account
from purgatory_pipeline.analytics.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from purgatory_pipeline.notebook import report
from pyspark.sql import SparkSession

from purgatory.extensions.archive import schema
from tests.daemon_process import DaemonProcess

WAITS = 30
PER_RUN = 10


def record_run(folder: Path, first_id: int, mark: int, *, killed: bool = False) -> None:
    """One run with as many waits as every other; its marks reach those up to `mark` of all runs so far."""
    arguments = ["--data-dir", str(folder / "data"), "--archive", str(folder / "archive"), "--archive-roll-ms", "1000"]
    daemon = DaemonProcess(folder, arguments)
    try:
        with Client(daemon.address) as client:
            offsets = list(range(first_id, first_id + WAITS))
            batch = partition_columns(OperationKind.PRODUCE, ["orders-0"], None, offsets, [600_000], None)
            client.register("desk", first_id, batch)
            client.advance("orders-0", high_watermark=mark)
        if killed:  # once its history is in files
            deadline = time.monotonic() + 120
            while rows_in(folder / "archive" / schema.OUTCOMES) < PER_RUN:
                assert time.monotonic() < deadline, "no outcomes in the archive"
                time.sleep(0.1)
        else:
            assert daemon.stop() == 0
    finally:
        daemon.kill()


def rows_in(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


@pytest.mark.slow  # two daemons, and two passes of Spark
def test_waits_that_go_on_after_a_kill_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """A real daemon with a journal is killed, and the next one ends what waited: no wait is lost, and none counts
    twice.
    """
    record_run(tmp_path, 1, PER_RUN, killed=True)
    record_run(tmp_path, WAITS + 1, 2 * WAITS)
    archive = str(tmp_path / "archive")
    kept = WAITS - PER_RUN
    assert {finding.name: finding.count for finding in account(spark, find_archive(archive)).findings} == {
        intake_account.CRASHES: 1,
        intake_account.KEPT: kept,
        intake_account.EARLIER_RUN: kept,
    }
    made = report(spark, archive)
    assert {name: made.totals[name] for name in ("registered", "ended", "unfinished", "carried_in")} == {
        "registered": 2 * WAITS,
        "ended": 2 * WAITS,
        "unfinished": 0,
        "carried_in": 0,
    }
    (advice,) = made.tables["advice"].where("topic is null").collect()
    assert advice["operations"] == 2 * WAITS
    made.release()


@pytest.mark.slow  # two daemons, and three commands on Spark
def test_a_restarted_history_is_accounted_for(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was registered in one run and ended in the next is counted and named; every command copes."""
    record_run(tmp_path, 1, PER_RUN)
    record_run(tmp_path, WAITS + 1, 2 * WAITS)
    archive = str(tmp_path / "archive")
    taken = account(spark, find_archive(archive))
    kept = WAITS - PER_RUN
    assert {finding.name: finding.count for finding in taken.findings} == {
        intake_account.KEPT: kept,
        intake_account.EARLIER_RUN: kept,
    }
    assert taken.rows_used(schema.OUTCOMES) == taken.rows_used(schema.REGISTRATIONS) == 2 * WAITS
    assert main(["check", archive]) == 0
    assert f"{kept} {intake_account.EARLIER_RUN}" in capsys.readouterr().out
    assert main(["report", archive, "--out", str(tmp_path / "report")]) == 0
    assert main(["replay", archive, "--out", str(tmp_path / "replay")]) == 0
    said = capsys.readouterr().out
    assert f"unchanged policy: 100 % of {PER_RUN} outcomes equal" in said, "the second run's marks are not in its rows"
    assert f"{WAITS} operations that ended after that are not compared" in said
