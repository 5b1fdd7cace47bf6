"""Runs the stream over two folders, one file of each per micro-batch, and prints the duration of each micro-batch.

    python -m bench.stream.timed_stream FOLDER OUT [--shards 4] [--files 1] [--master URL] [--conf N=V]

Prints one line of JSON: the seconds of each micro-batch, in order, including starting and planning. FOLDER contains
`registrations` and `events`; OUT must not exist.
"""

import argparse
import json
from pathlib import Path

from purgatory_pipeline.spark.spark_session import pass_settings, spark_session
from purgatory_pipeline.stream.endpoints import StreamInput, StreamOutput
from purgatory_pipeline.stream.stream_query import StreamOptions, start_stream
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION

__all__ = ["main"]


def main() -> None:
    """Run the stream to its end."""
    parser = argparse.ArgumentParser(prog="bench.stream.timed_stream")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--files", type=int, default=1, help="of each folder, in a micro-batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    kept = f"spark.sql.streaming.numRecentProgressUpdates={10_000}"
    pass_settings(given.master, ["spark.ui.enabled=false", "spark.driver.memory=2g", kept, *given.conf])
    session = spark_session("timed stream")
    inputs = [
        StreamInput(side, str(given.folder / name), "", given.files, 1)
        for side, name in ((OPERATION, "registrations"), (EVENT, "events"))
    ]
    options = StreamOptions(checkpoint=str(given.out / "_checkpoint"), shards=given.shards, delay_ms=0, once=True)
    query = start_stream(session, inputs, StreamOutput(str(given.out), str(given.out)), options)
    query.awaitTermination()
    assert any(given.out.glob("outcomes/*/*.parquet")), "no outcomes"
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    print(json.dumps([progress["durationMs"]["triggerExecution"] / 1_000 for progress in batches]))
    session.stop()


if __name__ == "__main__":
    main()
