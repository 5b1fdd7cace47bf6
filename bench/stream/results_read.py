"""Reads the results of a session with Spark, and prints how many were read and acknowledged per second.

    python -m bench.stream.results_read [--results 1000000]

The results are waiting at a real daemon when the query starts. The first micro-batch, in which Spark starts its Python,
is ignored.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from purgatory_client import Client
from purgatory_client.batches import produce
from purgatory_pipeline.datasource import PurgatoryDataSource
from purgatory_pipeline.spark.spark_session import pass_settings, spark_session
from pyspark.sql import SparkSession

from bench.measure.processes import daemon

__all__ = ["main"]

SESSION: Final = "bench"
PER_CALL: Final = 5_000
PER_BATCH: Final = 100_000
POLL_S: Final = 0.02


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(prog="bench.stream.results_read")
    parser.add_argument("--results", type=int, default=1_000_000)
    count = parser.parse_args().results
    pass_settings("local[2]", ["spark.ui.enabled=false", "spark.driver.memory=2g"])
    session = spark_session("results read")  # first: Java is forked off, which can fail while gRPC is busy
    session.dataSource.register(PurgatoryDataSource)
    with tempfile.TemporaryDirectory() as name, daemon() as served, Client(served.address) as client:
        client.advance(("orders", 0), high_watermark=PER_CALL)
        for first in range(0, count, PER_CALL):
            client.register(SESSION, first + 1, produce([("orders", 0)], offsets=list(range(PER_CALL))))
        print(f"{rate(session, served.address, client, Path(name)):,.0f} results/s read and acknowledged")
    session.stop()


def rate(session: SparkSession, address: str, client: Client, folder: Path) -> float:
    """Results per second, from the first acknowledgement to the last."""
    reader = session.readStream.format("purgatory").option("address", address).option("session", SESSION)
    writer = reader.option("maxRows", PER_BATCH).load().writeStream.format("noop")
    left = before = client.status().unacknowledged_results
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    began_s = 0.0
    while left:
        time.sleep(POLL_S)
        now, at_s = client.status().unacknowledged_results, time.perf_counter()
        if now < left and not began_s:
            began_s, before = at_s, now
        left = now
    query.stop()
    return before / (at_s - began_s)


if __name__ == "__main__":
    main()
