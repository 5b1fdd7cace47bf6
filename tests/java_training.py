"""Programs whose loaded classes become the archives of `tests.quick_java`; that module runs them."""

import sys
import tempfile
from pathlib import Path

from purgatory_pipeline.cli import main

from bench.pipeline.history.make import make_history
from bench.pipeline.history.plan import Plan
from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import ClusterClients
from tests.pipeline.conftest import start_spark
from tests.pipeline.stream.simulated_history import StreamFolders


def train_kafka(folder: Path) -> None:
    """A broker with a topic, a group and a transaction."""
    with KafkaCluster(folder) as cluster:
        clients = ClusterClients(cluster.bootstrap)
        clients.create("orders")
        clients.produce("orders", 10)
        clients.commit("readers", {("orders", 0): 5})
        with clients.transaction("orders") as producer:
            producer.commit_transaction(60)
        cluster.stop()


def train_spark(folder: Path) -> None:
    """A report and a stream over a small history."""
    history, stream = folder / "history", StreamFolders(folder / "stream")
    make_history(Plan(200), history)
    spark = start_spark(folder)
    main(["report", str(history), "--out", str(folder / "report")])
    sides = ["--registrations", str(history / "registrations"), "--events", str(history / "events")]
    main(["stream", *sides, "--results", str(stream.results), "--once"])
    running = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    running.stdin.close()
    running.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        {"kafka": train_kafka, "spark": train_spark}[sys.argv[1]](Path(scratch))
