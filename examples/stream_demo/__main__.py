"""Runs the demonstration. `--input FILE`: a log whose lines are sent (default: a generated one)."""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from purgatory_client import Client
from purgatory_pipeline.spark.spark_session import spark_session, stop_session

from examples.kafka_cluster import ClusterUnavailable, KafkaCluster
from examples.local_daemon import serving
from examples.stream_demo import same_answers
from examples.stream_demo.connector import connector_jars
from examples.stream_demo.parse_job import (
    JOB,
    LINES,
    PARTS,
    WAIT_S,
    LineWriter,
    TimedListener,
    medians_ms,
    start_parsing,
    timed_wait,
)

LINES_MADE: Final = 2_000
LINES_WAITED_FOR: Final = 10
REAL_DATA: Final = "PURGATORY_REAL_DATA"
"""Environment variable: a folder of real logs that contains HDFS_2k.log."""
FLUSH_S: Final = 60.0


def tell(what: str) -> None:
    print(what, flush=True)


def lines_of(given: Path | None) -> list[bytes]:
    real = Path(os.environ.get(REAL_DATA, "/nonexistent")) / "HDFS_2k.log"
    chosen = given or (real if real.is_file() else None)
    if chosen is None:
        tell(f"no --input, and {REAL_DATA} names no log: {LINES_MADE} lines are made")
        return [f"081109 {n:06d} INFO dfs.DataNode: block blk_{n} received".encode() for n in range(LINES_MADE)]
    lines = [line for line in chosen.read_bytes().splitlines() if line]
    if len(lines) <= LINES_WAITED_FOR:
        raise SystemExit(f"stream-demo: {chosen} has {len(lines)} lines; more than {LINES_WAITED_FOR} are needed")
    tell(f"{len(lines)} lines of {chosen.name}")
    return lines


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, 1, 1) for name in (LINES, same_answers.WAITS_TOPIC, same_answers.MARKS_TOPIC)]
    for created in admin.create_topics(topics).values():
        created.result(FLUSH_S)


def wait_for_a_job(lines: list[bytes], bootstrap: str, daemon: str, folder: Path) -> None:
    """Run a job over the lines, while a client writes a line and waits until it is processed."""
    jars = ",".join(str(jar) for jar in connector_jars())
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(["--jars", jars, "--driver-memory", "1g", "pyspark-shell"])
    session = spark_session("stream demo")
    listener = TimedListener(daemon, state=folder / "lineages")
    session.streams.addListener(listener)
    writer = LineWriter(bootstrap)
    last = writer.write(lines[:-LINES_WAITED_FOR])
    query = start_parsing(session, bootstrap, folder)
    try:
        with Client(daemon) as client:
            tell(f"1. a Spark job takes {last + 1} lines apart; one wait says when it is through:")
            result = client.produce({f"spark/{JOB}/{LINES}-0": last + 1}, timeout=WAIT_S)
            tell(f"   spark/{JOB}/{LINES}-0 at {last + 1}: {result.outcome.name.lower()} after {result.waited:.2f} s")
            commits = folder / "checkpoint" / "commits"
            waits = [timed_wait(client, writer, listener, commits, line) for line in lines[-LINES_WAITED_FOR:]]
        tell(f"2. {len(waits)} times: a line is written, and its writer waits until the job has processed it. Medians:")
        for part, median_ms in zip(PARTS, medians_ms(waits), strict=True):
            tell(f"   {median_ms:8.1f} ms  {part}")
        tell(f"   {medians_ms([[sum(wait)] for wait in waits])[0]:8.1f} ms  in all")
    finally:
        query.stop()
        session.streams.removeListener(listener)
        listener.close()
        stop_session()


async def run(given: Path | None, folder: Path) -> None:
    lines = lines_of(given)
    tell("starting a broker of Kafka ...")
    with KafkaCluster(folder / "kafka") as cluster:
        make_topics(cluster.bootstrap)
        async with serving(folder) as daemon:
            await asyncio.to_thread(wait_for_a_job, lines, cluster.bootstrap, daemon, folder)
            same_answers.write_records(cluster.bootstrap)
            tell(f"3. {same_answers.WAITS} waits and their marks, as records of Kafka, to the purgatory as a stream")
            streamed = await same_answers.answers_of_stream(cluster.bootstrap, folder, tell)
            tell("   and to the daemon")
            served = await same_answers.answers_of_daemon(cluster.bootstrap, daemon)
    if streamed != served:
        differing = [number for number in served if streamed.get(number) != served[number]]
        first = min(differing)
        says = f"{streamed.get(first)} of the stream, {served[first]} of the daemon"
        raise SystemExit(f"stream-demo: {len(differing)} answers differ; wait {first}: {says}")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(served.values()).items()))
    tell(f"   the same answers, each once: {counts}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="stream-demo", description=__doc__)
    parser.add_argument("--input", type=Path, help="a log, whose lines are sent")
    given = parser.parse_args().input
    with tempfile.TemporaryDirectory(prefix="stream-demo-") as name:
        try:
            asyncio.run(run(given, Path(name)))
        except ClusterUnavailable as error:
            sys.exit(f"stream-demo: {error}")


if __name__ == "__main__":
    main()
