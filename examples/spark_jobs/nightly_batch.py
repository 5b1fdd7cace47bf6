"""A nightly batch that starts when the ingestion job has passed midnight.

python -m examples.spark_jobs.nightly_batch      needs Java; starts its own daemon and Spark

The ingestion job is a streaming query over files that land every six hours. The batch must not start before the day's
last file is in its table. Instead of sleeping until three in the morning or polling the table, it makes one wait of six
hours, which survives a restart of the daemon because the daemon has a journal.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient
from purgatory_pipeline.listener import PurgatoryListener
from purgatory_pipeline.spark.spark_session import spark_session
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.free_ports import free_ports
from examples.local_daemon import serving
from examples.spark_jobs.landing import Landing

FILES_A_DAY: Final = 4
ROWS_A_FILE: Final = 250
JOB: Final = "ingestion"
PASSED_MIDNIGHT: Final = {f"spark/{JOB}/source0-0": FILES_A_DAY}
"""With Kafka as the input: the offset that `offsets_for_times` returns for midnight, for each partition of the
topic.
"""
WAIT_S: Final = 6 * 3600
SEEN_S: Final = 30


def start_ingestion(session: SparkSession, landing: Landing, folder: Path) -> StreamingQuery:
    """Start the job, which runs all day and is independent of the batch."""
    events = landing.stream(session, "day int, amount long")
    writer = events.writeStream.format("parquet").queryName(JOB).option("path", str(folder / "events"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def batch_of_the_day(session: SparkSession, folder: Path, day: int) -> tuple[int, int]:
    """The batch: number of rows and their sum. The result is correct only once the whole day has been ingested."""
    events = session.read.parquet(str(folder / "events")).where(F.col("day") == day)
    [found] = events.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount")).collect()
    return found.rows, found.amount


async def nightly(client: AsyncClient, session: SparkSession, folder: Path) -> tuple[int, int]:
    """The program that cron starts at midnight. Raises RuntimeError if the day is not complete by six in the
    morning.
    """
    result = await client.produce(PASSED_MIDNIGHT, timeout=WAIT_S)
    if not result.satisfied:
        raise RuntimeError(f"the ingestion job has not passed midnight: {result}")
    return await asyncio.to_thread(batch_of_the_day, session, folder, 1)


def land_hours(landing: Landing, day: int, files: int) -> None:
    for _ in range(files):
        landing.land({"day": day, "amount": amount} for amount in range(ROWS_A_FILE))


async def run(session: SparkSession, folder: Path, tell: Callable[[str], None]) -> tuple[int, int]:
    """Run the demonstration; returns the result of the batch."""
    first, second = folder / "first", folder / "second"
    for daemon in (first, second):
        daemon.mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = ["--grpc-address", address, "--data-dir", str(folder / "journal")]
    landing = Landing(folder / "landing")
    listener = PurgatoryListener(address, state=folder / "lineages")
    session.streams.addListener(listener)
    query = start_ingestion(session, landing, folder)
    try:
        async with AsyncClient(address) as client:
            async with serving(first, *options):
                land_hours(landing, 1, FILES_A_DAY - 1)
                await client.produce(dict.fromkeys(PASSED_MIDNIGHT, FILES_A_DAY - 1), timeout=SEEN_S)
                tell(f"midnight: the ingestion job has {FILES_A_DAY - 1} of the day's {FILES_A_DAY} files")
                batch = asyncio.create_task(nightly(client, session, folder))
                while not batch.done() and not [one async for one in client.operations()]:  # noqa: ASYNC110 - the daemon is asked
                    await asyncio.sleep(0.05)
                tell(f"the batch waits, for up to {WAIT_S // 3600} hours; now the daemon is restarted")
            async with serving(second, *options):
                tell("the daemon is back; the last file of the day lands, late")
                land_hours(landing, 1, 1)
                found = await batch
                tell(f"the batch has run: {found[0]} rows of the day, which come to {found[1]}")
                return found
    finally:
        query.stop()
        session.streams.removeListener(listener)
        listener.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="nightly-batch-") as name:
        asyncio.run(run(spark_session("nightly batch"), Path(name), print))
