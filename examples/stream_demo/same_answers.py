"""Sends the same registrations and marks to the purgatory as a Spark stream, killed midway, and to the daemon."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from purgatory_client import AsyncClient, Result

from examples.stream_demo.connector import connector_jars

WAITS_TOPIC: Final = "waits"
MARKS_TOPIC: Final = "marks"
PARTITION: Final = ("orders", 0)
WAITS: Final = 600
END: Final = 400
"""The last value of the partition's mark. Waits for higher offsets expire."""
STEP_MS: Final = 10
"""Interval between waits, and between marks. The last satisfied wait has then waited for two seconds."""
TIMEOUT_MS: Final = 4_000
BEGIN_MS: Final = 1_700_000_000_000
"""The stream runs on the timestamps of its records."""
PER_BATCH: Final = 100
FIRST_OUTCOME_S: Final = 180.0
FLUSH_S: Final = 60.0


def write_records(bootstrap: str) -> None:
    """Wait n is for offset n. At the same time the mark rises, more slowly; then only time passes."""
    topic, partition = PARTITION
    where = {"topic": topic, "partition": partition}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(1, WAITS + 1):
        condition = {"partitions": [{"topicPartition": where, "requiredOffset": number}]}
        said = {"operationId": number, "timeoutMs": TIMEOUT_MS, "produce": condition, "caller": "demo"}
        said["at"] = BEGIN_MS + STEP_MS * number
        producer.produce(WAITS_TOPIC, json.dumps(said))
        mark = {"topicPartition": where, "highWatermark": {"offset": number * END // WAITS}}
        producer.produce(MARKS_TOPIC, json.dumps({**mark, "at": said["at"]}))
    later = {"topicPartition": where, "highWatermark": {"offset": END}, "at": BEGIN_MS + 10 * TIMEOUT_MS}
    producer.produce(MARKS_TOPIC, json.dumps(later))
    producer.flush(FLUSH_S)


async def answers_of_stream(bootstrap: str, folder: Path, tell: Callable[[str], None]) -> dict[int, str]:
    """Run the stream, kill it and its Java process once it has written outcomes, and run it again to its end."""
    results = folder / "results"
    first = start_stream(bootstrap, results)
    try:
        async with asyncio.timeout(FIRST_OUTCOME_S):
            while not read_answers(results):
                if first.poll() is not None:
                    raise RuntimeError(f"the stream ended by itself:\n{log_of(results).read_text('utf-8')}")
                await asyncio.sleep(0.02)
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    tell(f"   killed with {len(read_answers(results))} of {WAITS} waits answered; started again")
    second = start_stream(bootstrap, results)
    if await asyncio.to_thread(second.wait):
        raise RuntimeError(f"the stream failed:\n{log_of(results).read_text('utf-8')}")
    found = read_answers(results)
    answers = dict(found)
    if len(found) != len(answers):
        raise RuntimeError(f"{len(found) - len(answers)} waits were answered twice")
    return answers


def start_stream(bootstrap: str, results: Path) -> subprocess.Popen[bytes]:
    jars = ",".join(str(jar) for jar in connector_jars())
    uris = {"registrations": WAITS_TOPIC, "events": MARKS_TOPIC}
    command = [sys.executable, "-m", "purgatory_pipeline.cli", "stream", "--results", str(results)]
    command += [word for side, topic in uris.items() for word in (f"--{side}", f"kafka://{bootstrap}/{topic}")]
    command += ["--format", "json", "--shards", "2", "--once", "--records-per-batch", str(PER_BATCH)]
    submit = shlex.join(["--jars", jars, "--driver-memory", "1g", "pyspark-shell"])
    # A separate process session, so that Spark's Java process is killed too.
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": submit}
    with log_of(results).open("ab") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def log_of(results: Path) -> Path:
    return results.with_name("stream.log")


def read_answers(results: Path) -> list[tuple[int, str]]:
    """Operation and outcome, from all complete files."""
    files = [str(path) for path in results.glob("outcomes/*/*.parquet") if not path.name.startswith("_")]
    if not files:
        return []
    table = ds.dataset(files, format="parquet").to_table(columns=["operation_id", "outcome"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


async def answers_of_daemon(bootstrap: str, address: str) -> dict[int, str]:
    """Read the same topics and send them to a daemon: first all waits, then the marks in order."""
    waits, marks = [await asyncio.to_thread(read_records, bootstrap, topic) for topic in (WAITS_TOPIC, MARKS_TOPIC)]
    async with AsyncClient(address) as client:
        asked = {int(wait["operationId"]): asyncio.create_task(wait_of(client, wait)) for wait in waits}
        for mark in marks:
            await client.advance(name_of(mark), high_watermark=mark["highWatermark"]["offset"])
        results = await asyncio.gather(*asked.values())
    return {number: result.outcome.name.lower() for number, result in zip(asked, results, strict=True)}


def read_records(bootstrap: str, topic: str) -> list[Any]:
    """All records of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo"})
    beginning = TopicPartition(topic, 0, OFFSET_BEGINNING)
    consumer.assign([beginning])
    try:
        _, end = consumer.get_watermark_offsets(beginning, FLUSH_S)
        found = [json.loads(message.value() or b"") for message in consumer.consume(end, FLUSH_S)]
    finally:
        consumer.close()
    if len(found) != end:
        raise RuntimeError(f"{topic}: {len(found)} of {end} records were read")
    return found


def wait_of(client: AsyncClient, wait: Any) -> Coroutine[Any, Any, Result]:  # noqa: ANN401 - JSON
    """The wait described by a record of `WAITS_TOPIC`."""
    (one,) = wait["produce"]["partitions"]
    return client.produce({name_of(one): one["requiredOffset"]}, timeout=wait["timeoutMs"] / 1000)


def name_of(record: Any) -> tuple[str, int]:  # noqa: ANN401 - JSON
    """The partition that a wait or a mark names."""
    name = record["topicPartition"]
    return name["topic"], name["partition"]
