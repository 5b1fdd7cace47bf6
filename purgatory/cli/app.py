"""The commands of `purgatory`: their arguments, and the client calls they make. `render` prints the results."""

import inspect
import pkgutil
import re
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer
from purgatory_client.aio import AsyncClient
from purgatory_client.unary import Filters
from purgatory_client.views import OperationOrder
from typer import Argument, Option
from typer._completion_classes import add_completion_class  # type: ignore[attr-defined]  # its copy of click is private
from typer.core import TyperCommand, TyperGroup

from purgatory import __version__
from purgatory.cli import render
from purgatory.cli.advance import advance
from purgatory.cli.completion import (
    BashWords,
    KeyOption,
    Kind,
    Operations,
    PartitionOption,
    SessionOption,
    choice,
    passed_on,
    sessions,
    shown_names,
    topics,
)
from purgatory.cli.connection_options import with_client
from purgatory.cli.dead_letters import dead_letters
from purgatory.cli.exit_codes import MEANINGS, Exit
from purgatory.cli.parsing import (
    ORDERS,
    Timeout,
    UsageError,
    checked_partition,
    is_reference,
    kind_of,
    operation_reference,
    order_of,
    seconds,
)
from purgatory.cli.signal import signal as signal_key
from purgatory.cli.tail import hot, tail
from purgatory.cli.waiting.caught_up import caught_up
from purgatory.cli.waiting.load import load, results
from purgatory.cli.waiting.ready import ready
from purgatory.cli.waiting.wait import wait
from purgatory.cli.watching import Watch, shown

T = TypeVar("T")

SNAPSHOT_ROWS: Final = 20


class _PlainHelp:
    """Writes the help with names instead of types: none for flags, N for numbers. Paragraphs are in one flow."""

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer has a copy of click's classes
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
        return parameters

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        self.help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(self.help or ""))
        super().format_help(ctx, formatter)  # type: ignore[misc]  # a mixin


class Command(_PlainHelp, TyperCommand): ...


class Commands(_PlainHelp, TyperGroup):
    def main(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as typer has them
        add_completion_class(BashWords, "bash")
        return super().main(*given, **named)


app: Final = typer.Typer(
    name="purgatory",
    cls=Commands,
    help="Waits as a service: wait for offsets and signals, report events, inspect pending operations.",
    epilog="purgatory help COMMAND explains a command, purgatory help exit-codes the exit codes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        render.print_lines(f"purgatory {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options that come before a command."""


async def ls(
    client: AsyncClient,
    partitions: Annotated[bool, Option("--partitions", "-p", help="List partitions instead of operations.")] = False,
    prefix: Annotated[
        str, Option(metavar="TEXT", autocompletion=topics, help="Only topics with this prefix (with --partitions).")
    ] = "",
    kind: Kind = None,
    partition: Annotated[str | None, PartitionOption(help="Only operations that wait on this partition.")] = None,
    key: Annotated[str, KeyOption(help="Only operations that wait on this key.")] = "",
    session: Annotated[str, SessionOption(help="Only this session.")] = "",
    limit: Annotated[int, Option(min=1, help="Maximum number of entries.")] = 1_000,
    sort: Annotated[
        str | None,
        Option(
            metavar="remaining|waited",
            autocompletion=choice(ORDERS),
            help="Sort all operations by remaining or waited time, most urgent first; lists at most 1,000.",
        ),
    ] = None,
    reverse: Annotated[bool, Option("--reverse", help="Least urgent first (with --sort).")] = False,
    search: Annotated[
        str, Option(metavar="TEXT", help="Only names that contain this text, ignoring case (with --sort).")
    ] = "",
    watch: Watch = None,
) -> Exit:
    """List pending operations, or known partitions."""
    on = None if partition is None else checked_partition(partition)
    filters: Filters = {"session_id": session, "kind": kind_of(kind), "partition": on, "key": key}
    page = min(limit, 1_000)
    order = None if sort is None else order_of(sort, reverse=reverse)
    if order is None and (reverse or search):
        raise UsageError("--reverse and --search need --sort")

    async def show() -> None:
        if order is not None:
            ranked = await client.ranked_operations(order, limit=page, search=search, **filters)
            render.operations(ranked.operations)
            if ranked.matching > len(ranked.operations):
                render.error_line(f"listed {len(ranked.operations):,} of {ranked.matching:,}; see --limit")
        elif partitions:
            render.partitions(await _up_to(limit, client.partitions(prefix=prefix, page_size=page)))
        else:
            render.operations(await _up_to(limit, client.operations(page_size=page, **filters)))

    return await shown(watch, show)


async def show(
    client: AsyncClient,
    what: Annotated[
        str, Argument(metavar="PARTITION|SESSION/ID", autocompletion=shown_names, help="orders-3, or SESSION/17.")
    ],
) -> Exit:
    """Show a partition, or a pending operation: its pace, what holds it back, and whether it will be in time."""
    if is_reference(what):
        render.operation(await client.operation(*operation_reference(what)))
    else:
        render.partition(await client.partition(checked_partition(what)))
    return Exit.OK


async def cancel(
    client: AsyncClient,
    operations: Annotated[list[str] | None, Operations(help="Operations to cancel.")] = None,
    session: Annotated[str | None, SessionOption(help="Cancel all operations of this session.")] = None,
    partition: Annotated[str | None, PartitionOption(help="Cancel all operations that wait on this partition.")] = None,
    key: Annotated[str | None, KeyOption(help="Cancel all operations that wait on this key.")] = None,
) -> Exit:
    """Cancel pending operations. Exit code 16 if none was found."""
    if [bool(operations), session is not None, partition is not None, key is not None].count(True) != 1:
        raise UsageError("give exactly one of: operations (SESSION/ID), --session, --partition, --key")
    count = 0
    for session_id, operation_id in [operation_reference(text) for text in operations or []]:
        count += await client.cancel([operation_id], session_id=session_id)
    if not operations:
        on = None if partition is None else checked_partition(partition)
        count = await client.cancel(session_id=session, partition=on, key=key)
    render.cancelled(count)
    return Exit.OK if count else Exit.NOT_FOUND


async def extend(
    client: AsyncClient,
    operations: Annotated[list[str], Operations(help="Operations, as shown by `purgatory ls`.")],
    timeout: Timeout = "30s",  # noqa: ASYNC109 - the operations' own
) -> Exit:
    """Let pending operations wait for at least the timeout from now on. Exit code 16 if one of them was not found."""
    references = [operation_reference(text) for text in operations]
    by_session: dict[str, list[int]] = {}
    for session_id, operation_id in references:
        by_session.setdefault(session_id, []).append(operation_id)
    gone = {
        (session_id, operation_id)
        for session_id, ids in by_session.items()
        for operation_id in await client.extend(ids, seconds(timeout), session_id=session_id)
    }
    render.extended([(f"{session_id}/{number}", (session_id, number) not in gone) for session_id, number in references])
    return Exit.NOT_FOUND if gone else Exit.OK


async def close(
    client: AsyncClient,
    session: Annotated[str, Argument(metavar="SESSION", autocompletion=sessions, help="Session id.")],
) -> Exit:
    """Close a session: cancel its pending operations and drop its unacknowledged results."""
    render.closed(await client.close_session(session))
    return Exit.OK


async def status(client: AsyncClient, watch: Watch = None) -> Exit:
    """Show the daemon's version, its counters, and the remaining time of pending operations."""

    async def show() -> None:
        render.status(await client.status(remaining_time=True))

    return await shown(watch, show)


async def top(client: AsyncClient) -> Exit:
    """Show a live view of pending operations, with keys to sort and filter. Without a terminal, print it once."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):  # None: closed
        return await _snapshot(client)
    try:
        from purgatory.cli.top import Top  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        raise _missing("top", error, "top") from error
    await Top(client).run_async()
    return Exit.OK


async def _snapshot(client: AsyncClient) -> Exit:
    """Print what `top` shows first: the counts, and the operations that expire first."""
    status = await client.status()
    ranked = await client.ranked_operations(OperationOrder.LEAST_REMAINING, limit=SNAPSHOT_ROWS)
    render.print_lines(render.pending_line(status), render.counts_line(status))
    if ranked.operations:
        listed = (
            f"the {len(ranked.operations)} that expire first" if len(ranked.operations) < ranked.matching else "all"
        )
        render.print_lines(f"waits: {ranked.matching:,}, {listed}:")
        render.operations(ranked.operations)
    return Exit.OK


def _missing(command: str, error: ModuleNotFoundError, extra: str, otherwise: str = "") -> typer.Exit:
    """Print which package a command needs; returns what ends the program."""
    advice = f"install it with: pip install 'purgatory-waits[{extra}]'{otherwise}"
    render.error_line(f"`purgatory {command}` needs {error.name}; {advice}")
    return typer.Exit(Exit.ERROR)


async def mcp(client: AsyncClient) -> Exit:
    """Serve waits as tools for agents, on stdin and stdout (Model Context Protocol)."""
    try:
        from purgatory.cli.mcp_server import serve as serve_tools  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        raise _missing("mcp", error, "mcp") from error
    await serve_tools(client)
    return Exit.OK


_WAITS: Final = "a wait is cancelled at the daemon"
_READS: Final = "nothing was changed"
_WRITES: Final = "the daemon may have applied it"
_LOADS: Final = "the registered waits stay pending; cancel them with: purgatory cancel --session {session}"
_COLLECTS: Final = "results that were not printed are still at the daemon"

WAITING: Final = "Wait"
DAEMON: Final = "Run a daemon"

# In the order of the help.
for _group, _name, _function, _interrupted in (
    (WAITING, "wait", wait, _WAITS),
    (WAITING, "caught-up", caught_up, _WAITS),
    ("Report progress", "advance", advance, _WRITES),
    ("Report progress", "signal", signal_key, _WRITES),
    ("Inspect", "status", status, _READS),
    ("Inspect", "ls", ls, _READS),
    ("Inspect", "show", show, _READS),
    ("Inspect", "top", top, _READS),
    ("Inspect", "tail", tail, _READS),
    ("Inspect", "hot", hot, _READS),
    ("Operate", "cancel", cancel, _WRITES),
    ("Operate", "extend", extend, _WRITES),
    ("Operate", "close", close, _WRITES),
    ("Operate", "dead-letters", dead_letters, _WRITES),
    ("Many waits at once", "load", load, _LOADS),
    ("Many waits at once", "results", results, _COLLECTS),
):
    _command = with_client(_function, _interrupted, as_json=_name != "top")
    app.command(_name, cls=Command, rich_help_panel=_group)(_command)

app.command("ready", cls=Command, rich_help_panel=WAITING)(ready)
app.command("mcp", cls=Command, rich_help_panel=WAITING)(with_client(mcp, _WAITS, as_json=False))


def _passing_on(name: str, run: str, parser: str, text: str) -> None:
    """Add a command whose arguments another parser reads. `run` and `parser` are functions, as module:function."""

    def command(context: typer.Context) -> NoReturn:
        try:
            called = pkgutil.resolve_name(run)
        except ModuleNotFoundError as error:
            remedy = f", or run: uvx 'purgatory-waits[server]' {name}"
            raise _missing(name, error, "server", remedy) from error
        raise typer.Exit(called(context.args))

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    text = f"{text}; see `purgatory {name} --help`."
    added = app.command(
        name, cls=passed_on(parser), help=text, add_help_option=False, context_settings=settings, rich_help_panel=DAEMON
    )
    added(command)


_ACCESS: Final = "purgatory.service.access.commands"
_JOURNAL: Final = "purgatory.journal.maintenance"
_passing_on("serve", "purgatory.cli.serve:serve", "purgatory.cli.serve:serve_parser", "Run the daemon")
_passing_on("journal", f"{_JOURNAL}:main", f"{_JOURNAL}:journal_parser", "Check, export or import a journal")
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
            autocompletion=lambda: ["exit-codes", *(one.name or "" for one in app.registered_commands)],
            help="A command, or exit-codes.",
        ),
    ] = None,
) -> None:
    """Explain a command, or the exit codes that all commands have."""
    if topic == "exit-codes":
        render.print_lines(*(f"{code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()), soft_wrap=True)
    else:
        app(prog_name="purgatory", args=[*filter(None, [topic]), "--help"])


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="purgatory", args=sys.argv[1:])


async def _up_to(limit: int, items: AsyncIterator[T]) -> list[T]:
    """The first `limit` items. Prints a message on stderr if there are more."""
    found: list[T] = []
    async for item in items:
        if len(found) == limit:
            render.error_line(f"listed {limit:,}, and there are more; see --limit")
            break
        found.append(item)
    return found
