"""What all command lines have in common: numbers, files, headings of the help, and commands that return exit codes."""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import click

FILE: Final = click.Path(path_type=Path)


class _Plain(click.ParamType[Any]):
    """Refuses numbers with underscores, spaces or digits of other scripts, which Python would read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as in click
        if isinstance(value, str) and re.fullmatch(r"[0-9.eE+-]+", value) is None:
            self.fail(f"{value!r} is not a number", param, ctx)
        return super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - as in click
        return "N"


class _Integer(_Plain, click.types.IntParamType): ...


NUMBER: Final = _Integer()


class Whole(_Plain, click.IntRange):
    """A whole number within a range."""


class Decimal(_Plain, click.FloatRange):
    """A number within a range."""


class Option(click.Option):
    """An option that `--help` lists under a heading."""

    def __init__(self, *arguments: Any, heading: str, **named: Any) -> None:  # noqa: ANN401 - as in click
        super().__init__(*arguments, **named)
        self.heading: Final = heading


class Command(click.Command):
    """A command whose options may have headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        under: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)) is not None:
                under.setdefault(getattr(one, "heading", "Options"), []).append(record)
        write_lists(formatter, under)


class Program(click.Group):
    """A command line that reports wrong usage in one line, which names the page of help."""

    def main(self, *arguments: Any, **named: Any) -> NoReturn:  # noqa: ANN401 - as in click
        try:
            code = super().main(*arguments, **named | {"standalone_mode": False})
        except click.Abort:
            code = 130  # as of a shell
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context else named.get("prog_name", self.name)
            more = f" (see {path} --help)" if isinstance(error, click.UsageError) else ""
            click.echo(f"{path}: {' '.join(error.format_message().split()).rstrip('.')}{more}", err=True)
            code = error.exit_code
        sys.exit(code or 0)


class ExitCodes(Program):
    """A group whose commands return their exit codes. `errors` are reported on stderr, with the exit code `failed`."""

    def __init__(self, *arguments: Any, errors: tuple[type[Exception], ...], failed: int, **named: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **named)
        self.errors: Final = errors
        self.failed: Final = failed

    def invoke(self, ctx: click.Context) -> None:
        try:
            code = super().invoke(ctx)
        except self.errors as error:
            complain(error)
            code = self.failed
        ctx.exit(code or 0)


def complain(error: Exception) -> None:
    """Print an error on stderr; each line begins with the name of the command, or of its group."""
    for line in str(error).splitlines():
        click.echo(f"{click.get_current_context().command_path}: {line}", err=True)


def write_lists(formatter: click.HelpFormatter, under: Mapping[str, list[tuple[str, str]]]) -> None:
    for heading, rows in under.items():
        with formatter.section(heading):
            formatter.write_dl(rows)


def starting(words: Iterable[str], typed: str) -> list[str]:
    return [word for word in words if word.startswith(typed)]
