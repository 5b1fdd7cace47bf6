"""The examples of Spark jobs that are waited for, on the suite's session."""

import asyncio
from pathlib import Path

from pyspark.sql import SparkSession

from examples.spark_jobs import nightly_batch, own_write
from purgatory.testing import daemon_in_process


def test_the_nightly_batch_has_the_whole_day(spark: SparkSession, tmp_path: Path) -> None:
    """One wait over a restart of the daemon: the batch runs once the last file of the day is in its table."""
    told: list[str] = []
    rows, amount = asyncio.run(nightly_batch.run(spark, tmp_path, told.append))
    files, a_file = nightly_batch.FILES_A_DAY, nightly_batch.ROWS_A_FILE
    assert (rows, amount) == (files * a_file, files * sum(range(a_file)))
    assert len(told) == 4


def test_the_web_handler_reads_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    with (
        daemon_in_process("--shutdown-grace-ms", "100") as daemon,
        own_write.own_write_app(spark, tmp_path, daemon.address) as address,
    ):
        totals = own_write.shop(address, told.append)
    assert totals == [10 * number for number in range(1, own_write.ORDERS + 1)]
    assert len(told) == own_write.ORDERS
