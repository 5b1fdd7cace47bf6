"""The command line `purgatory-pipeline`, which is also the script for spark-submit.

Exit codes: 0 done; 1 Spark failed; 2 the command line or the input is invalid; 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.pack import pack
from purgatory_pipeline.replay.command import replay
from purgatory_pipeline.report.command import report
from purgatory_pipeline.spark.spark_session import is_spark_error, root_cause

NAME: Final = "purgatory-pipeline"
EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2
EXIT_INTERRUPTED: Final = 130
TRACEBACK: Final = "PURGATORY_TRACEBACK"
"""If set to 1, failures of Spark are shown with their traceback."""
EXTRA: Final = frozenset({"pyspark", "pyarrow", "pandas", "numpy", "altair", "jinja2", "packaging", "vl_convert"})
"""Packages that only the extra `pipeline` installs."""

app = typer.Typer(
    name=NAME,
    help="Reports and what-if replays of an archive, and the purgatory as a stream, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def settings(
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark master, as for spark-submit (default: local[*]).")
    ] = "",
    conf: Annotated[
        list[str] | None, typer.Option(metavar="spark.NAME=VALUE", help="A Spark setting; may be repeated.")
    ] = None,
) -> None:
    """Spark settings for all commands; they may also follow the command."""
    if master or conf:
        from purgatory_pipeline.spark.spark_session import pass_settings

        pass_settings(master, conf or [])


app.command("pack")(pack)
app.command("replay")(replay)
app.command("report")(report)


@app.command("check")
def check(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="Folder or URI of the archive.")],
    since: Annotated[str, typer.Option(metavar="INSTANT", help="Only rows at or after this instant (UTC).")] = "",
    until: Annotated[str, typer.Option(metavar="INSTANT", help="Only rows before this instant (UTC).")] = "",
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be repeated.")] = None,
) -> None:
    """Accounts for an archive: files and rows used or set aside, and operations without registration or outcome."""
    from purgatory_pipeline.archive.accounting import account
    from purgatory_pipeline.archive.catalog import find_archive
    from purgatory_pipeline.spark.spark_session import spark_session
    from purgatory_pipeline.time_arguments import parse_window

    start, end = parse_window(since, until)
    found = find_archive(archive)
    intake = account(spark_session("check", rows=found.all_rows), found, since=start, until=end, topics=topic or None)
    intake.print()
    for file in found.set_aside:
        typer.echo(f"set aside {file.path}: {file.reason}: {file.detail}")


@app.command("stream")
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
    from purgatory_pipeline.location import open_location
    from purgatory_pipeline.spark.spark_session import spark_session, unwrapped_errors
    from purgatory_pipeline.stream.endpoints import KAFKA, TABLE, StreamInput, StreamOutput
    from purgatory_pipeline.stream.stream_query import StreamOptions, start_stream
    from purgatory_pipeline.stream.wire_records import EVENT, OPERATION
    from purgatory_pipeline.time_arguments import parse_span_ms

    if results.startswith((TABLE, f"{KAFKA}://")) and not (checkpoint and quarantine):
        raise PipelineError(f"--results {results}: --checkpoint DIR and --quarantine DIR are required too")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. An error is one line on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(args=settings_first(given), prog_name=NAME)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except PipelineError as error:
        return _complain(str(error), EXIT_UNUSABLE)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        return _complain(f"{error.name} is not installed: pip install 'purgatory-waits[pipeline]'", EXIT_UNUSABLE)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        if not is_spark_error(error) or os.environ.get(TRACEBACK) == "1":
            raise
        return _complain(f"Spark failed: {root_cause(error)} (in full: {TRACEBACK}=1)", EXIT_FAILED)
    finally:
        _stop()
    return 0


def settings_first(arguments: Sequence[str]) -> list[str]:
    """Moves `--master` and `--conf`, with their values, in front of the command."""
    hoisted: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in {"--master", "--conf"}:
            hoisted += [word, *[value for value in [next(words, None)] if value is not None]]
        elif word.startswith(("--master=", "--conf=")):
            hoisted.append(word)
        else:
            rest.append(word)
    return [*hoisted, *rest]


def _complain(message: str, code: int) -> int:
    print(f"{NAME}: {message}", file=sys.stderr)
    return code


def _stop() -> None:
    if "purgatory_pipeline.spark.spark_session" in sys.modules:
        from purgatory_pipeline.spark.spark_session import stop_session

        stop_session()


if __name__ == "__main__":
    sys.exit(main())
