"""The archive of a real daemon with a journal that was killed and restarted: one history in two runs."""

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from purgatory_client import Client
from purgatory_client.batches import partition_columns
from purgatory_client.results import OperationKind
from purgatory_pipeline.archive import intake_account
from purgatory_pipeline.archive.accounting import account
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from pyspark.sql import SparkSession

from purgatory.extensions.archive import schema
from tests.kit.daemon import StartDaemon

WAITS = 30
PER_RUN = 10


def rows_in(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


@pytest.mark.slow  # two daemons, and a command on Spark
def test_a_restarted_history_is_accounted_for(
    spark: SparkSession, start_daemon: StartDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(tmp_path / "archive")
    arguments = ["--data-dir", str(tmp_path / "data"), "--archive", archive, "--archive-roll-ms", "200"]
    for first_id, mark in ((1, PER_RUN), (WAITS + 1, 2 * WAITS)):
        daemon = start_daemon(*arguments)
        with Client(daemon.address) as client:
            offsets = list(range(first_id, first_id + WAITS))
            batch = partition_columns(OperationKind.PRODUCE, ["orders-0"], None, offsets, [600_000], None)
            client.register("desk", first_id, batch)
            client.advance("orders-0", high_watermark=mark)
        if first_id == 1:
            deadline = time.monotonic() + 120
            while rows_in(tmp_path / "archive" / schema.OUTCOMES) < PER_RUN:
                assert time.monotonic() < deadline, "no outcomes in the archive"
                time.sleep(0.02)
            daemon.kill()
        else:
            assert daemon.stop() == 0
    taken = account(spark, find_archive(archive))
    kept = WAITS - PER_RUN
    assert {finding.name: finding.count for finding in taken.findings} == {
        intake_account.CRASHES: 1,
        intake_account.KEPT: kept,
        intake_account.EARLIER_RUN: kept,
    }
    assert taken.rows_used(schema.OUTCOMES) == taken.rows_used(schema.REGISTRATIONS) == 2 * WAITS
    assert main(["replay", archive, "--out", str(tmp_path / "replay")]) == 0
    printed = capsys.readouterr().out
    assert f"unchanged policy: 100 % of {PER_RUN} outcomes equal" in printed, "the second run lacks the first's marks"
    assert f"{WAITS} operations that ended after that are not compared" in printed
