"""The command line `purgatory-pipeline`, which is also the script for spark-submit.

Exit codes: 0 done; 1 Spark failed; 2 the command line or the input is invalid; 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from purgatory_pipeline.analytics.archive.command import check
from purgatory_pipeline.analytics.replay.command import replay
from purgatory_pipeline.analytics.report.command import report
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.pack import pack
from purgatory_pipeline.spark.failures import is_spark_error, root_cause
from purgatory_pipeline.streaming.stream.command import stream

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
        from purgatory_pipeline.spark.spark_session import pass_settings  # noqa: PLC0415 -- Spark is slow to import

        pass_settings(master, conf or [])


app.command("check")(check)
app.command("pack")(pack)
app.command("replay")(replay)
app.command("report")(report)
app.command("stream")(stream)


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
        from purgatory_pipeline.spark.spark_session import stop_session  # noqa: PLC0415 -- see settings

        stop_session()


if __name__ == "__main__":
    sys.exit(main())
