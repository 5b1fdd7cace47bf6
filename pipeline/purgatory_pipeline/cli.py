"""The command line `purgatory-pipeline`, which is also the script for spark-submit.

Exit codes: 0 done; 1 Spark failed; 2 the command line or the input is invalid; 130 interrupted.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from purgatory.command_line import Program, Whole
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.replay.command import replay
from purgatory_pipeline.report.command import advise, compare, report

NAME: Final = "purgatory-pipeline"
EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2
EXIT_INTERRUPTED: Final = 130
TRACEBACK: Final = "PURGATORY_TRACEBACK"
"""If set to 1, failures of Spark are shown with their traceback."""
EXTRA: Final = frozenset({"pyspark", "pyarrow", "pandas", "numpy", "altair", "jinja2", "packaging", "vl_convert"})
"""Packages that only the extra `pipeline` installs."""


def _pass_to_spark(_context: click.Context, _option: click.Parameter, value: str | tuple[str, ...] | None) -> None:
    if value:
        from purgatory_pipeline.spark.spark_session import pass_settings

        master, settings = (value, ()) if isinstance(value, str) else ("", value)
        pass_settings(master, settings)


SETTINGS: Final[list[click.Parameter]] = [
    click.Option(
        ["--master"],
        metavar="URL",
        expose_value=False,
        callback=_pass_to_spark,
        help="Spark master, as for spark-submit (default: local[*]).",
    ),
    click.Option(
        ["--conf"],
        metavar="spark.NAME=VALUE",
        multiple=True,
        is_eager=True,  # before --master, which needs no check: nothing is passed if a setting is unusable
        expose_value=False,
        callback=_pass_to_spark,
        help="A Spark setting; may be repeated.",
    ),
]
"""For all commands, before or after the name of the command."""


@click.group(cls=Program, params=SETTINGS, context_settings={"show_default": True})
def app() -> None:
    """Reports, advice and what-if replays of an archive, and the purgatory as a stream, on Spark."""


app.add_command(advise)
app.add_command(compare)
app.add_command(replay)
app.add_command(report)


@app.command()
@click.argument("archive", metavar="ARCHIVE", help="Folder or URI of the archive.")
@click.option("--since", metavar="INSTANT", help="Only rows at or after this instant (UTC).")
@click.option("--until", metavar="INSTANT", help="Only rows before this instant (UTC).")
@click.option("--topic", multiple=True, help="Only this topic; may be repeated.")
def check(archive: str, since: str | None, until: str | None, topic: tuple[str, ...]) -> None:
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
        click.echo(f"set aside {file.path}: {file.reason}: {file.detail}")


@app.command()
@click.option("--registrations", metavar="URI", required=True, help="A folder of files, or kafka://BROKERS/TOPIC.")
@click.option("--events", metavar="URI", required=True, help="The same for events.")
@click.option("--results", metavar="URI", required=True, help="A folder, kafka://BROKERS/TOPIC, or table:NAME.")
@click.option("--checkpoint", metavar="DIR", help="Stores the progress of the stream; default: RESULTS/_checkpoint.")
@click.option("--quarantine", metavar="DIR", help="For late and malformed rows; default: the folder of the results.")
@click.option("--format", "form", metavar="NAME", help="parquet or json for files, protobuf or json for Kafka.")
@click.option("--shards", type=Whole(min=1), default=4, help="Number of shards of a new stream.")
@click.option("--delay", metavar="SPAN", default="2s", help="How far rows may be out of order: 500ms, 2s.")
@click.option(
    "--heartbeat",
    metavar="SECONDS",
    type=Whole(min=0),
    default=0,
    help="Advance time by this machine's clock too; 0: by rows only.",
)
@click.option("--max-ahead", metavar="SPAN", default="1h", help="Set aside rows dated further ahead of this clock.")
@click.option(
    "--forget", metavar="SPAN", default="0s", help="Drop marks without waits and events for this long; 0s: never."
)
@click.option("--once", is_flag=True, help="Process the available input and exit.")
@click.option("--files-per-batch", type=Whole(min=1), default=100, help="Maximum files of each input in a micro-batch.")
@click.option(
    "--records-per-batch", type=Whole(min=1), default=500_000, help="Maximum records of each topic in a micro-batch."
)
def stream(
    registrations: str,
    events: str,
    results: str,
    checkpoint: str | None,
    quarantine: str | None,
    form: str | None,
    shards: int,
    delay: str,
    heartbeat: int,
    max_ahead: str,
    forget: str,
    once: bool,
    files_per_batch: int,
    records_per_batch: int,
) -> None:
    """Run the purgatory as a stream: it reads registrations and events and writes one outcome for each operation."""
    from purgatory_pipeline.location import open_location
    from purgatory_pipeline.spark.spark_session import spark_session, unwrapped_errors
    from purgatory_pipeline.stream.endpoints import KAFKA, TABLE, StreamInput, StreamOutput
    from purgatory_pipeline.stream.stream_query import StreamOptions, print_progress, start_stream
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
        forget_ms=parse_span_ms("--forget", forget),
    )
    ahead_ms = parse_span_ms("--max-ahead", max_ahead)
    inputs = [
        StreamInput(side, uri, form or "", files_per_batch, records_per_batch, ahead_ms)
        for side, uri in ((OPERATION, registrations), (EVENT, events))
    ]
    output = StreamOutput(results, quarantine or results)
    session = spark_session("stream")
    output.require_catalog(session)
    with unwrapped_errors():
        query = start_stream(session, inputs, output, options)
        try:
            print_progress(query)
        finally:
            query.stop()


@app.command()
@click.argument("checkpoint", metavar="CHECKPOINT", help="Folder or URI of the stream's checkpoint.")
@click.option("--topic-prefix", metavar="TEXT", default="", help="Only on topics or keys that start with this.")
@click.option("--limit", type=Whole(min=1), default=20, help="Maximum number of operations to list.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each operation.")
def pending(checkpoint: str, topic_prefix: str, limit: int, as_json: bool) -> None:
    """Lists what is pending in a stream, the longest waits first, by the time of the stream. Starts no Spark."""
    from purgatory_pipeline.datasource.pending_reader import longest_waiting, pending_line

    oldest, summary = longest_waiting(checkpoint, topic_prefix, limit)
    for row in oldest:
        click.echo(json.dumps(row, default=str) if as_json else pending_line(row))
    click.echo(summary, err=as_json)


for _command in app.commands.values():
    _command.params += SETTINGS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. An error is one line on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(args=given, prog_name=NAME)
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
        from purgatory_pipeline.spark.spark_session import is_spark_error, root_cause

        if not is_spark_error(error) or os.environ.get(TRACEBACK) == "1":
            raise
        return _complain(f"Spark failed: {root_cause(error)} (in full: {TRACEBACK}=1)", EXIT_FAILED)
    finally:
        _stop()
    return 0


def _complain(message: str, code: int) -> int:
    print(f"{NAME}: {message}", file=sys.stderr)
    return code


def _stop() -> None:
    if "purgatory_pipeline.spark.spark_session" in sys.modules:
        from purgatory_pipeline.spark.spark_session import stop_session

        stop_session()


if __name__ == "__main__":
    sys.exit(main())
