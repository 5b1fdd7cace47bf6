"""The commands of `purgatory`: their names, groups and summaries. A command's module is imported when it is called."""

import gc
import itertools
import os
import pkgutil
import sys
from functools import cache
from typing import Any, Final, NoReturn

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from purgatory import __version__
from purgatory.command_line import Program, starting, write_lists

DAEMON: Final = "Run a daemon"
GROUPS: Final = {
    "Wait": {
        "wait": "Wait until the targets are reached and print the result. Offsets are compared with high watermarks by "
        "default.",
        "caught-up": "Wait until everything written before this command, or before a time, has been processed or "
        "replicated.",
        "ready": "Wait until everything written before the first request under this name has been processed or "
        "replicated.",
        "mcp": "Serve waits as tools for agents, on stdin and stdout (Model Context Protocol).",
    },
    "Report progress": {
        "advance": "Report events of a partition. Prints the number of waits that ended.",
        "signal": "Signal a key. Prints the number of waits that ended.",
    },
    "Inspect": {
        "status": "Show the daemon's version, its counters, and the remaining time of pending operations.",
        "ls": "List pending operations, or known partitions.",
        "show": "Show a partition, or a pending operation: its pace, what holds it back, and whether it will be in "
        "time.",
        "top": "Show a live view of pending operations, with keys to sort and filter. Without a terminal, print it "
        "once.",
        "tail": "Print results as they arrive, until Ctrl-C: your own, or everyone's with the role admin.",
        "lag": "Show how far a group or a replica is behind, in offsets and in time, and when it will have caught up.",
        "hot": "List the partitions and keys that most operations wait on.",
    },
    "Operate": {
        "cancel": "Cancel pending operations. Exit code 16 if none was found.",
        "extend": "Let pending operations wait for at least the timeout from now on. Exit code 16 if one of them was "
        "not found.",
        "close": "Close a session: cancel its pending operations and drop its unacknowledged results.",
        "dead-letters": "List results that could not be delivered to their callbacks, or resend or delete them.",
    },
    "Many waits at once": {
        "load": "Register many produce waits in one session, wait for their results, and print the throughput.",
        "results": "Collect the results of a session until none of its operations is pending.",
    },
    DAEMON: {
        "serve": "Run the daemon. Serves gRPC and HTTP until SIGTERM or SIGINT.",
        "journal": "Check, export or import a journal while its daemon is stopped.",
        "fleet": "Create, inspect and leave a fleet of daemons with one replicated log.",
        "token": "Create and list the daemon's bearer tokens; the file stores only their hashes.",
        "policy": "Check a policy file, or what it permits a caller.",
    },
}
"""The first paragraph of each command's help. Its function's docstring has the others."""

SUMMARIES: Final = {name: text for commands in GROUPS.values() for name, text in commands.items()}
MODULES: Final = {
    "purgatory.cli.wait:": ("wait", "caught-up"),
    "purgatory.cli.ready:": ("ready", "lag"),
    "purgatory.cli.operations:": ("mcp", "status", "ls", "show", "top", "cancel", "extend", "close", "dead-letters"),
    "purgatory.cli.advance:": ("advance", "signal"),
    "purgatory.cli.tail:": ("tail", "hot"),
    "purgatory.cli.load:": ("load", "results"),
    "purgatory.cli.serve:": ("serve",),
    "purgatory.journal.maintenance:": ("journal",),
    "purgatory.extensions.fleet.commands:": ("fleet",),
    "purgatory.service.access.commands:": ("token", "policy"),
}
"""Where the commands are."""
PLACES: Final = {name: place + name.replace("-", "_") for place, names in MODULES.items() for name in names}


@cache
def load(name: str) -> click.Command:
    """Import a command."""
    if name != "serve":
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's log repeats errors in words of its own
    command: click.Command = pkgutil.resolve_name(PLACES[name])
    command.help = "\n\n".join(filter(None, (SUMMARIES[name], command.help)))
    return command


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
        return [word for word in words[:-1] if word != "="], words[-1]  # bash splits --flag=value into three words

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value)[self.kept :]}"


class Commands(Program):
    """The commands in their groups, each imported when it is called."""

    def main(self, *arguments: Any, **named: Any) -> NoReturn:  # noqa: ANN401 - as in click
        add_completion_class(BashWords, "bash")
        gc.freeze()  # Python's end would look through all modules, which takes as long as importing some
        super().main(*arguments, **named)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = super().resolve_command(ctx, args)
        gc.freeze()
        gc.enable()
        return found

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            known = super().get_command(ctx, cmd_name)
            if known is None and not ctx.resilient_parsing:
                raise click.exceptions.NoSuchCommand(cmd_name, possibilities=[*SUMMARIES, *self.commands], ctx=ctx)
            return known
        try:
            return load(cmd_name)
        except ModuleNotFoundError as error:
            from purgatory.cli.parsing import exit_without  # noqa: PLC0415 - slow

            if cmd_name not in GROUPS[DAEMON]:
                raise
            remedy = f", or run: uvx 'purgatory-waits[server]' {cmd_name}"
            exit_without(cmd_name, error, "server", remedy)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as in click
        helps = [(name, command.help or "") for name, command in self.commands.items()]
        write_lists(formatter, {**{heading: [*under.items()] for heading, under in GROUPS.items()}, "Help": helps})

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in starting((*SUMMARIES, *self.commands), incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=Commands,
    epilog="purgatory help COMMAND explains a command, purgatory help exit-codes the exit codes.",
    context_settings={"show_default": True},
)
@click.version_option(__version__, message="purgatory %(version)s", help="Print the version and exit.")
def app() -> None:
    """Waits as a service: wait for offsets and signals, report events, inspect pending operations."""


@app.command("help")
@click.argument(
    "topic",
    required=False,
    help="A command, or exit-codes.",
    shell_complete=lambda _context, _option, typed: starting(("exit-codes", *SUMMARIES, "help"), typed),
)
def show_help(topic: str | None) -> None:
    """Explain a command, or the exit codes that all commands have."""
    if topic == "exit-codes":
        from purgatory.cli import render  # noqa: PLC0415 - slow
        from purgatory.cli.exit_codes import MEANINGS  # noqa: PLC0415 - slow

        render.print_lines(*(f"{code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()), soft_wrap=True)
    else:
        app(prog_name="purgatory", args=[*filter(None, [topic]), "--help"])


def main() -> None:
    app(prog_name="purgatory", args=sys.argv[1:])
