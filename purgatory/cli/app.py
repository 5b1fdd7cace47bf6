"""The commands of `purgatory`: their names, groups and summaries. A command's module is imported when it is called."""

import gc
import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, NoReturn

import typer
from typer import Argument, Option
from typer._completion_classes import (  # type: ignore[attr-defined]  # its copy of click is private
    BashComplete,
    add_completion_class,
)
from typer.core import CompletionItem, TyperCommand, TyperGroup  # type: ignore[attr-defined]  # as above

from purgatory import __version__


class _Given:
    """Passes on text, and what has its type already: typer's check imports pydantic, which takes as long as gRPC."""

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - typer has a copy of click's classes
        kind, is_list = param.type_descriptor.annotation, param.multiple or param.nargs == -1
        if value is None or type(value) is kind:
            return () if value is None and is_list else value
        if kind == list[str]:
            return list(value)
        if kind in {int, float} and isinstance(value, str) and re.fullmatch(r"[0-9.eE+-]+", value) is None:
            raise typer.BadParameter(f"{value!r} is not a number", ctx, param)  # pydantic would take "1_0"
        return type(param).get_runtime_param(param).coerce(value, param, ctx)


class _PlainHelp:
    """Quick to run, and to explain itself: help needs no `rich`. It has names instead of types: N for numbers."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - as above
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # a mixin
        for one in parameters:
            if one.param_type_name == "argument":
                usage = re.sub("[{}]", "", one._usage_display_name())  # noqa: SLF001 - typer puts names into braces
                one.display_type_rich = lambda ctx: None  # noqa: ARG005 - typer passes it by name
                one.get_usage_pieces = lambda ctx, usage=usage: [usage]  # noqa: ARG005 - as above
            elif one.is_flag:
                one.metavar = ""
            elif one.metavar is None:
                one.metavar = "N"
            one.get_runtime_param = _Given
        return parameters

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write parameters and commands, each under its heading."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            heading = one.rich_help_panel or ("Arguments" if one.param_type_name == "argument" else "Options")
            rows.setdefault(heading, []).append(one.get_help_record(ctx))
        for name, one in getattr(self, "commands", {}).items():
            rows.setdefault(one.rich_help_panel, []).append((name, one.help))
        for heading, under in rows.items():
            with formatter.section(heading):
                formatter.write_dl(under)


class Command(_PlainHelp, TyperCommand): ...


class BashWords(BashComplete):
    """Bash splits words at colons, which keys and sessions may contain, and replaces only what follows the last one."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for before, word in itertools.pairwise(["", *args, incomplete]):
            if words and ":" in {before, word}:
                words[-1] += word
            else:
                words.append(word)
        self.kept = len(words[-1]) - len(incomplete.lstrip(":"))
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return str(item.value)[self.kept :]


class Commands(_PlainHelp, TyperGroup):
    def main(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as typer has them
        add_completion_class(BashWords, "bash")
        gc.freeze()  # Python's end would look through all modules, which takes as long as importing some
        return super().main(*given, **named)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        """Replace the command of the list, which has no parameters, by that of its module."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in LOADERS:
            command = LOADERS[name]()
        gc.freeze()
        gc.enable()
        return name, command, rest


app: Final = typer.Typer(
    name="purgatory",
    cls=Commands,
    help="Waits as a service: wait for offsets and signals, report events, inspect pending operations.",
    epilog="purgatory help COMMAND explains a command, purgatory help exit-codes the exit codes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"purgatory {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options that come before a command."""


_WAITS: Final = "a wait is cancelled at the daemon"
_READS: Final = "nothing was changed"
_WRITES: Final = "the daemon may have applied it"
_LOADS: Final = "the registered waits stay pending; cancel them with: purgatory cancel --session {session}"
_COLLECTS: Final = "results that were not printed are still at the daemon"

WAITING: Final = "Wait"
REPORTING: Final = "Report progress"
INSPECTING: Final = "Inspect"
OPERATING: Final = "Operate"
LOADING: Final = "Many waits at once"
DAEMON: Final = "Run a daemon"

Load = Callable[[], Any]
LOADERS: Final[dict[str, Load]] = {}
"""Make the commands whose modules are not imported yet."""


def _add(group: str, name: str, summary: str, load: Load) -> None:
    """List a command, which `load` makes when it is called."""
    LOADERS[name] = load
    app.command(name, cls=Command, help=summary, rich_help_panel=group)(lambda: None)


def _made(name: str, function: Callable[..., None], **settings: Any) -> Any:  # noqa: ANN401 - typer has a copy of click's
    """The command that typer makes of this function."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, **settings)(function)
    return typer.main.get_command(alone)


def _command(name: str, place: str, interrupted: str | None) -> Any:  # noqa: ANN401 - as above
    """The command whose function is at module:function; with a client if it can be interrupted."""
    from purgatory.cli.connection_options import with_client  # noqa: PLC0415 - slow

    function = pkgutil.resolve_name(place)
    text = f"{SUMMARIES[name]}\n\n{inspect.cleandoc(function.__doc__ or '')}"
    if interrupted is not None:
        function = with_client(function, interrupted, as_json=name not in {"top", "mcp"})
    return _made(name, function, cls=Command, help=text)


SUMMARIES: Final = {
    "wait": "Wait until the targets are reached and print the result. Offsets are compared with high watermarks by "
    "default.",
    "caught-up": "Wait until everything written before this command, or before a time, has been processed or "
    "replicated.",
    "ready": "Wait until everything written before the first request under this name has been processed or replicated.",
    "mcp": "Serve waits as tools for agents, on stdin and stdout (Model Context Protocol).",
    "advance": "Report events of a partition, or signal a key. Prints the number of waits that ended.",
    "signal": "Signal a key. Prints the number of waits that ended.",
    "status": "Show the daemon's version, its counters, and the remaining time of pending operations.",
    "ls": "List pending operations, or known partitions.",
    "show": "Show a partition, or a pending operation: its pace, what holds it back, and whether it will be in time.",
    "top": "Show a live view of pending operations, with keys to sort and filter. Without a terminal, print it once.",
    "tail": "Print results as they arrive, until Ctrl-C: your own, or everyone's with the role admin.",
    "hot": "List the partitions and keys that most operations wait on.",
    "cancel": "Cancel pending operations. Exit code 16 if none was found.",
    "extend": "Let pending operations wait for at least the timeout from now on. Exit code 16 if one of them was not "
    "found.",
    "close": "Close a session: cancel its pending operations and drop its unacknowledged results.",
    "dead-letters": "List results that could not be delivered to their callbacks, or resend or delete them.",
    "load": "Register many produce waits in one session, wait for their results, and print the throughput.",
    "results": "Collect the results of a session until none of its operations is pending.",
}
"""The first paragraphs of the help. The docstring of the function has the others."""

# In the order of the help.
for _group, _name, _place, _interrupted in (
    (WAITING, "wait", "purgatory.cli.wait:wait", _WAITS),
    (WAITING, "caught-up", "purgatory.cli.caught_up:caught_up", _WAITS),
    (WAITING, "ready", "purgatory.cli.ready:ready", None),
    (WAITING, "mcp", "purgatory.cli.operations:mcp", _WAITS),
    (REPORTING, "advance", "purgatory.cli.advance:advance", _WRITES),
    (REPORTING, "signal", "purgatory.cli.signal:signal", _WRITES),
    (INSPECTING, "status", "purgatory.cli.operations:status", _READS),
    (INSPECTING, "ls", "purgatory.cli.operations:ls", _READS),
    (INSPECTING, "show", "purgatory.cli.operations:show", _READS),
    (INSPECTING, "top", "purgatory.cli.operations:top", _READS),
    (INSPECTING, "tail", "purgatory.cli.tail:tail", _READS),
    (INSPECTING, "hot", "purgatory.cli.tail:hot", _READS),
    (OPERATING, "cancel", "purgatory.cli.operations:cancel", _WRITES),
    (OPERATING, "extend", "purgatory.cli.operations:extend", _WRITES),
    (OPERATING, "close", "purgatory.cli.operations:close", _WRITES),
    (OPERATING, "dead-letters", "purgatory.cli.dead_letters:dead_letters", _WRITES),
    (LOADING, "load", "purgatory.cli.load:load", _LOADS),
    (LOADING, "results", "purgatory.cli.load:results", _COLLECTS),
):
    _add(_group, _name, SUMMARIES[_name], partial(_command, _name, _place, _interrupted))


def _passing_on(name: str, run: str, parser: str, text: str) -> None:
    """Add a command whose arguments another parser reads. `run` and `parser` are functions, as module:function."""

    def command(context: typer.Context) -> NoReturn:
        try:
            called = pkgutil.resolve_name(run)
        except ModuleNotFoundError as error:
            from purgatory.cli.operations import missing  # noqa: PLC0415 - slow

            remedy = f", or run: uvx 'purgatory-waits[server]' {name}"
            raise missing(name, error, "server", remedy) from error
        raise typer.Exit(called(context.args))

    def load() -> Any:  # noqa: ANN401 - as above
        from purgatory.cli.completion import passed_on  # noqa: PLC0415 - slow

        settings = {"allow_extra_args": True, "ignore_unknown_options": True}
        return _made(name, command, cls=passed_on(parser), add_help_option=False, context_settings=settings)

    _add(DAEMON, name, f"{text}; see `purgatory {name} --help`.", load)


_ACCESS: Final = "purgatory.service.access.commands"
_JOURNAL: Final = "purgatory.journal.maintenance"
_FLEET: Final = "purgatory.extensions.fleet.commands"
_passing_on("serve", "purgatory.cli.serve:serve", "purgatory.cli.serve:serve_parser", "Run the daemon")
_passing_on("journal", f"{_JOURNAL}:main", f"{_JOURNAL}:journal_parser", "Check, export or import a journal")
_passing_on("fleet", f"{_FLEET}:main", f"{_FLEET}:fleet_parser", "Create, inspect and leave a fleet of daemons")
_passing_on("token", f"{_ACCESS}:run_token", f"{_ACCESS}:token_parser", "Create and list the daemon's bearer tokens")
_passing_on(
    "policy", f"{_ACCESS}:run_policy", f"{_ACCESS}:policy_parser", "Check a policy file, or what it permits a caller"
)


@app.command("help", cls=Command, rich_help_panel="Help")
def show_help(
    topic: Annotated[
        str | None,
        Argument(
            metavar="TOPIC",
            autocompletion=lambda: ["exit-codes", *LOADERS, "help"],
            help="A command, or exit-codes.",
        ),
    ] = None,
) -> None:
    """Explain a command, or the exit codes that all commands have."""
    if topic == "exit-codes":
        from purgatory.cli import render  # noqa: PLC0415 - slow
        from purgatory.cli.exit_codes import MEANINGS  # noqa: PLC0415 - slow

        render.print_lines(*(f"{code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()), soft_wrap=True)
    else:
        app(prog_name="purgatory", args=[*filter(None, [topic]), "--help"])


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="purgatory", args=sys.argv[1:])
