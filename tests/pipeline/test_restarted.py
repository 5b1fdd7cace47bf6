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
from purgatory_pipeline.replay.policy import UNCHANGED
from purgatory_pipeline.replay.replay_account import ReplayAccount
from purgatory_pipeline.replay.run_files import NEVER, find_runs
from purgatory_pipeline.replay.spark_jobs import replay_sums
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
    assert f"unchanged policy: 100 % of {PER_RUN + WAITS} outcomes equal" in printed
    assert f"{kept} operations have no recorded outcome" in printed, "those that were pending at the restart"


@pytest.mark.slow  # four daemons, and a replay on Spark
def test_operations_are_compared_after_three_restarts(
    spark: SparkSession, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Each run continues the marks of the one before: waits on an old mark or key end at once, and as in the replay."""
    archive = str(tmp_path / "archive")
    arguments = ["--data-dir", str(tmp_path / "data"), "--archive", archive]
    for run in range(4):
        daemon = start_daemon(*arguments)
        with Client(daemon.address) as client:
            if run == 0:
                client.advance("orders-0", high_watermark=1_000)
                client.signal_key("job-1")
            first_id = 1_000 * run + 1
            batch = partition_columns(OperationKind.PRODUCE, ["orders-0"], None, list(range(1, 301)), [60_000], None)
            client.register("desk", first_id, batch)
            batch = partition_columns(OperationKind.PRODUCE, ["orders-0"], None, [10**6], [60_000], None)
            client.register("desk", first_id + 900, batch)
            assert client.signal(["job-1"], timeout=60).satisfied
        assert daemon.stop() == 0
    sums = replay_sums(spark, find_archive(archive), [UNCHANGED])
    runs = find_runs(find_archive(archive))
    compared = ReplayAccount(sums, [run.facts for run in runs], [UNCHANGED])
    assert [run.facts.in_doubt_from for run in runs] == [NEVER] * 4
    assert (compared.equal, compared.different, compared.in_doubt) == (4 * 301, 0, 0)
    assert compared.no_outcome == 4, "one was pending at the end of each run"
