"""The command line `purgatory-pipeline`; also what spark-submit runs. Each command is a module of `commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import typer

from purgatory_pipeline.errors import PipelineError

EXIT_UNUSABLE: Final = 2

app = typer.Typer(
    name="purgatory-pipeline",
    help="Reports, what-if replays and generated histories over the archive of a purgatory, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit code. What is wrong with the input is one line on stderr."""
    try:
        app(args=None if arguments is None else list(arguments), standalone_mode=True)
    except PipelineError as error:
        print(f"purgatory-pipeline: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
