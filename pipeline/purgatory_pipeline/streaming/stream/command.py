"""The command `stream`: its options."""

from __future__ import annotations

from typing import Annotated

import typer


def stream(
    registrations: Annotated[str, typer.Option(metavar="URI", help="A folder of files, or kafka://BROKERS/TOPIC.")],
    events: Annotated[str, typer.Option(metavar="URI", help="The same for events.")],
    results: Annotated[str, typer.Option(metavar="URI", help="A folder, kafka://BROKERS/TOPIC, or table:NAME.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Stores the progress of the stream; default: RESULTS/_checkpoint.")
    ] = "",
    quarantine: Annotated[
        str, typer.Option(metavar="DIR", help="For late and malformed rows; default: the folder of the results.")
    ] = "",
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="parquet or json for files, protobuf or json for Kafka.")
    ] = "",
    shards: Annotated[int, typer.Option(min=1, help="Number of shards of a new stream.")] = 4,
    delay: Annotated[str, typer.Option(metavar="SPAN", help="How far rows may be out of order: 500ms, 2s.")] = "2s",
    heartbeat: Annotated[
        int, typer.Option(metavar="SECONDS", min=0, help="Advance time by this machine's clock too; 0: by rows only.")
    ] = 0,
    max_ahead: Annotated[
        str, typer.Option(metavar="SPAN", help="Set aside rows dated further ahead of this clock.")
    ] = "1h",
    once: Annotated[bool, typer.Option("--once", help="Process the available input and exit.")] = False,
    files_per_batch: Annotated[int, typer.Option(min=1, help="Maximum files of each input in a micro-batch.")] = 100,
    records_per_batch: Annotated[
        int, typer.Option(min=1, help="Maximum records of each topic in a micro-batch.")
    ] = 500_000,
) -> None:
    """Run the purgatory as a stream: it reads registrations and events and writes one outcome for each operation."""
    from purgatory_pipeline.analytics.archive.location import open_location
    from purgatory_pipeline.spark.failures import unwrapped_errors
    from purgatory_pipeline.spark.spark_session import spark_session
    from purgatory_pipeline.streaming.stream.stream_inputs import KAFKA, StreamInput, StreamUnusable
    from purgatory_pipeline.streaming.stream.stream_outputs import TABLE, StreamOutput
    from purgatory_pipeline.streaming.stream.stream_query import StreamOptions, start_stream
    from purgatory_pipeline.streaming.stream.wire_records import EVENT, OPERATION
    from purgatory_pipeline.time_arguments import parse_span_ms

    if results.startswith((TABLE, f"{KAFKA}://")) and not (checkpoint and quarantine):
        raise StreamUnusable(f"--results {results}: --checkpoint DIR and --quarantine DIR are required too")
    options = StreamOptions(
        checkpoint=checkpoint or open_location(results).child("_checkpoint").uri,
        shards=shards,
        delay_ms=parse_span_ms("--delay", delay),
        once=once,
        heartbeat_s=heartbeat,
    )
    ahead_ms = parse_span_ms("--max-ahead", max_ahead)
    inputs = [
        StreamInput(side, uri, form, files_per_batch, records_per_batch, ahead_ms)
        for side, uri in ((OPERATION, registrations), (EVENT, events))
    ]
    output = StreamOutput(results, quarantine or results)
    session = spark_session("stream")
    output.require_catalog(session)
    with unwrapped_errors():
        query = start_stream(session, inputs, output, options)
        try:
            query.awaitTermination()
        finally:
            query.stop()
