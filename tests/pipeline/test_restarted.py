"""The archive of a real daemon with a journal that was killed and restarted: one history in four runs."""

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from purgatory_client import Client
from purgatory_client.batches import partition_columns
from purgatory_client.results import OperationKind
from purgatory_pipeline.archive import accounting
from purgatory_pipeline.archive.accounting import account
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from purgatory_pipeline.replay.run_files import NEVER, find_runs
from pyspark.sql import SparkSession

from purgatory.extensions.archive import schema
from tests.kit.daemon import StartDaemon

WAITS = 1_000
KEPT = 20
"""Pending when the first daemon is killed."""


def rows_in(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


@pytest.mark.slow  # four daemons, and a command on Spark
def test_a_history_of_three_restarts_is_accounted_for_and_compared(
    spark: SparkSession, start_daemon: StartDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run begins with the marks of the one before: in the replay, too, waits on an old mark or key end at once."""
    archive = str(tmp_path / "archive")
    arguments = ["--data-dir", str(tmp_path / "data"), "--archive", archive, "--archive-roll-ms", "200"]
    for first_id in range(1, 4 * WAITS, WAITS):
        daemon = start_daemon(*arguments)
        with Client(daemon.address) as client:
            offsets = [1, *range(first_id + 1, first_id + WAITS)]
            batch = partition_columns(OperationKind.PRODUCE, ["orders-0"], None, offsets, [600_000], None)
            client.register("desk", first_id, batch)
            if first_id == 1:
                client.signal_key("job-1")
            assert client.signal(["job-1"], timeout=600).satisfied
            client.advance("orders-0", high_watermark=first_id + WAITS - 1 - (KEPT if first_id == 1 else 0))
        if first_id == 1:
            deadline = time.monotonic() + 120
            while rows_in(tmp_path / "archive" / schema.OUTCOMES) <= WAITS - KEPT:
                assert time.monotonic() < deadline, "no outcomes in the archive"
                time.sleep(0.02)
            daemon.kill()
        else:
            assert daemon.stop() == 0
    taken = account(spark, find_archive(archive))
    assert {finding.name: finding.count for finding in taken.findings} == {
        accounting.CRASHES: 1,
        accounting.KEPT: KEPT,
        accounting.EARLIER_RUN: KEPT,
    }
    assert taken.rows_used(schema.OUTCOMES) == taken.rows_used(schema.REGISTRATIONS) == 4 * (WAITS + 1)
    doubts = sorted(run.facts.in_doubt_from for run in find_runs(find_archive(archive)))
    assert doubts[1:] == [NEVER] * 3, "only the end of the one that was killed may be missing"
    assert main(["replay", archive, "--out", str(tmp_path / "replay")]) == 0
    printed = capsys.readouterr().out
    assert f"unchanged policy: 100 % of {4 * (WAITS + 1) - KEPT:,} outcomes equal" in printed
    assert f"{KEPT} operations without a recorded outcome" in printed, "pending when the first was killed"
