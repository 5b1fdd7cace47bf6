"""A streaming job that parses lines of a log, and a breakdown of the latency between a line and its answer."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, Message, Producer
from purgatory_client import Client
from purgatory_pipeline.listener import PurgatoryListener
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import QueryProgressEvent
from pyspark.sql.streaming.query import StreamingQuery

JOB: Final = "parse"
LINES: Final = "lines"
FLUSH_S: Final = 60.0
WAIT_S: Final = 60.0
PARTS: Final = (
    "produce: the broker has the line",
    "until a micro-batch begins",
    "the micro-batch, to its commit",
    "until Spark calls the listener",
    "until the wait is answered",
)


class LineWriter:
    """Writes lines to the job's topic. Returned offsets have been acknowledged by the broker."""

    def __init__(self, bootstrap: str) -> None:
        self._producer: Final = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})

    def write(self, lines: Sequence[bytes]) -> int:
        """Write the lines; returns the offset of the last one."""
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                raise KafkaException(error)
            offsets.append(message.offset() or 0)

        for line in lines:
            self._producer.produce(LINES, line, partition=0, on_delivery=delivered)
            self._producer.poll(0)
        self._producer.flush(FLUSH_S)
        return max(offsets)


@dataclass
class CalledBack:
    """The progress of a micro-batch as reported by Spark, and the time of the report."""

    batch: int
    end: int
    began_s: float
    called_s: float


class TimedListener(PurgatoryListener):
    """A listener that records when Spark calls it."""

    def __init__(self, daemon: str, *, state: Path) -> None:
        super().__init__(daemon, state=state)
        self.calls: Final[list[CalledBack]] = []

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Record micro-batches that contained lines."""
        called_s, progress = time.time(), event.progress
        if progress.numInputRows:
            began_s = datetime.fromisoformat(progress.timestamp).timestamp()
            end = int(progress.sources[0].endOffset.rpartition(":")[2].rstrip("}"))  # {"lines":{"0":43}}
            self.calls.append(CalledBack(progress.batchId, end, began_s, called_s))
        super().onQueryProgress(event)


def start_parsing(session: SparkSession, bootstrap: str, folder: Path) -> StreamingQuery:
    """Start the job: level and component of each line, as Parquet."""
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", LINES)
        .option("startingOffsets", "earliest")
        .load()
    )
    line = F.col("value").cast("string")
    parsed = records.select(
        "offset",
        F.regexp_extract(line, r"\b(TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\b", 1).alias("level"),
        F.regexp_extract(line, r"(\S+):", 1).alias("component"),
        F.length(line).alias("characters"),
    )
    writer = parsed.writeStream.format("parquet").queryName(JOB).option("path", str(folder / "parsed"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def timed_wait(client: Client, writer: LineWriter, listener: TimedListener, commits: Path, line: bytes) -> list[float]:
    """Write a line and wait until the job has processed it; returns the seconds of each of `PARTS`."""
    wrote_s = time.time()
    offset = writer.write([line])
    produced_s = time.time()
    result = client.produce({f"spark/{JOB}/{LINES}-0": offset + 1}, timeout=WAIT_S)
    answered_s = time.time()
    if not result.satisfied:
        raise RuntimeError(f"line {offset} was not processed within {WAIT_S:.0f} s")
    call = next(call for call in listener.calls if call.end > offset)
    # Spark reports the start in whole milliseconds, and a batch may have begun while the line was being sent.
    began_s = max(produced_s, call.began_s)
    committed_s = (commits / str(call.batch)).stat().st_mtime
    moments = [wrote_s, produced_s, began_s, committed_s, call.called_s, answered_s]
    return [later - earlier for earlier, later in pairwise(moments)]


def medians_ms(waits: Sequence[Sequence[float]]) -> list[float]:
    """The median of each part over several waits."""
    return [statistics.median(part) * 1000 for part in zip(*waits, strict=True)]
