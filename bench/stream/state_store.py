"""Compares the stream, which keeps its shards in files, with the same shards in Spark's state store.

    PYTHONPATH=.:pipeline:connectors:client .venv/bin/python -m bench.stream.state_store

The peer is the least that `transformWithStateInPandas` needs: the same payloads, grouped by shard, and the same
engine, whose bytes are a value in RocksDB. It writes the outcomes without their items, by Spark's file sink. Runs
alternate; the first two micro-batches of each are ignored. "Restart" is a run with one more micro-batch, start to end.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from purgatory_pipeline.spark.spark_session import own_session, pass_settings, spark_session
from purgatory_pipeline.stream.endpoints import StreamInput, StreamOutput
from purgatory_pipeline.stream.payloads import PAYLOAD
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.shard_state import from_bytes, to_bytes
from purgatory_pipeline.stream.shard_task import OUTCOMES, play_payloads
from purgatory_pipeline.stream.stream_query import StreamOptions, start_stream
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from bench.stream.stream_load import StreamLoad

__all__ = ["main"]

SHARDS: Final = 2
PER_BATCH: Final = 50_000
BATCHES: Final = 6
ROUNDS: Final = 3
PENDING: Final = 300_000
OUTCOME: Final = "caller string, operation_id long, kind string, outcome string, waited_ms long"
STATE: Final = "org.apache.spark.sql.execution.streaming.state"
STORE: Final = {
    "spark.sql.streaming.stateStore.providerClass": f"{STATE}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(SHARDS),
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",  # the inputs are named
}


class ShardInStore(StatefulProcessor):
    """A shard whose bytes are a value of the state store."""

    def init(self, handle: Any) -> None:  # noqa: ANN401 - Spark's
        """Spark calls this on the driver too."""
        self._octets = handle.getValueState("shard", "octets binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ANN401, ARG002, N802, N803 - Spark's
        """Play the payloads of a micro-batch."""
        stored = self._octets.get()
        shard = Shard(number=key[0]) if stored is None else from_bytes(bytes(stored[0]), 0, number=key[0])
        found = play_payloads(shard, pa.Table.from_pandas(pd.concat(rows), PAYLOAD, preserve_index=False))[OUTCOMES]
        self._octets.update((to_bytes(shard),))
        yield found.select([column.split()[0] for column in OUTCOME.split(", ")]).to_pandas()


def in_files(session: SparkSession, inputs: list[StreamInput], out: Path) -> StreamingQuery:
    """Start the stream as it is."""
    options = StreamOptions(checkpoint=str(out / "checkpoint"), shards=SHARDS, delay_ms=0, once=True)
    return start_stream(session, inputs, StreamOutput(str(out), str(out)), options)


def in_store(session: SparkSession, inputs: list[StreamInput], out: Path) -> StreamingQuery:
    session = own_session(session)
    for name, value in STORE.items():
        session.conf.set(name, value)
    parts = [one.payloads(session, SHARDS) for one in sorted(inputs, key=lambda one: one.side == OPERATION)]
    grouped = reduce(DataFrame.unionByName, parts).groupBy("shard")
    played = grouped.transformWithStateInPandas(ShardInStore(), OUTCOME, "Append", "None")
    writer = played.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
    return writer.trigger(availableNow=True).start(str(out / "outcomes"))


def main() -> None:
    """Run both over the same load, in turns, and print a line for each."""
    pass_settings("local[2]", ["spark.ui.enabled=false", "spark.driver.memory=2g"])
    session = spark_session("state store")
    with tempfile.TemporaryDirectory(prefix="bench-state-store-") as folder:
        figures: dict[str, list[tuple[float, float, float]]] = {}
        for number in range(ROUNDS):
            for start in (in_files, in_store)[:: 1 if number % 2 else -1]:
                work = Path(folder, f"{start.__name__}-{number}")
                figures.setdefault(start.__name__, []).append(measured(session, start, work))
        for way, runs in sorted(figures.items()):
            rate, size, again_s = (statistics.median(values) for values in zip(*runs, strict=True))
            print(f"{way}: {rate:,.0f} operations/s, {size:,.0f} bytes, restart {again_s:.1f} s", flush=True)
        session.stop()  # it would still write into the folder


def measured(session: SparkSession, start: Any, folder: Path) -> tuple[float, float, float]:  # noqa: ANN401
    """Operations per second, bytes of state in the checkpoint, and seconds of a run with one more micro-batch."""
    load, out = StreamLoad(folder / "load"), folder / "out"
    load.staying(PENDING)
    for _ in range(BATCHES):
        load.answered(PER_BATCH)
    folders = {OPERATION: "registrations", EVENT: "events"}
    inputs = [StreamInput(side, str(load.folder / name), "", 1, 1) for side, name in folders.items()]
    (query := start(session, inputs, out)).awaitTermination()
    seconds = [one["durationMs"]["triggerExecution"] / 1_000 for one in query.recentProgress if one["numInputRows"]]
    assert sum(1 for _ in out.glob("outcomes/**/*.parquet")), "no outcomes"
    kept = (out / "checkpoint").glob("shards/*" if start is in_files else "state/**/*")
    state = sum(file.stat().st_size for file in kept if file.is_file())
    load.answered(PER_BATCH)
    began = time.perf_counter()
    start(session, inputs, out).awaitTermination()
    return PER_BATCH / statistics.median(seconds[2:]), state, time.perf_counter() - began


if __name__ == "__main__":
    main()
