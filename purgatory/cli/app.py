"""The commands of `purgatory`: their arguments, and the client calls they make. `render` prints the results."""

import sys
from collections.abc import AsyncIterator
from functools import partial
from types import ModuleType
from typing import Annotated, Final, NoReturn, TypeVar

import typer
from purgatory_client import waits
from purgatory_client.aio import AsyncClient
from purgatory_client.results import Result
from purgatory_client.sources.position_tokens import FORM, Positions

from purgatory.cli import render
from purgatory.cli.advance import advance
from purgatory.cli.caught_up import caught_up, reached
from purgatory.cli.connection_options import DEFAULT_ADDRESS, Address, AsJson, run, secured
from purgatory.cli.dead_letters import dead_letters
from purgatory.cli.exit_codes import OF_OUTCOME, Exit, epilog
from purgatory.cli.load import load, results
from purgatory.cli.parsing import (
    UsageError,
    checked_partition,
    key_counts,
    kind_of,
    operation_reference,
    order_of,
    partition_offsets,
    seconds,
)
from purgatory.cli.tail import hot, tail
from purgatory.cli.watching import Watch, shown

T = TypeVar("T")

_PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that passes its arguments on to another parser."""

app: Final = typer.Typer(
    name="purgatory",
    help="Waits as a service: wait for offsets and signals, report events, inspect pending operations.",
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


for _command in (advance, load, results, tail, hot):
    app.command(epilog=epilog())(secured(_command))
app.command("caught-up", epilog=epilog())(secured(caught_up))
app.command("dead-letters", epilog=epilog())(secured(dead_letters))


@app.command("wait", epilog=epilog())
@secured
def wait(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="partition@offset (orders-3@42), keys with --signal, or a token from `purgatory caught-up --token`.",
        ),
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", "-t", help="How long to wait: 500ms, 30s, 2m, 1h; 0: answer immediately.")
    ] = "30s",
    record: Annotated[
        bool, typer.Option("--record", help="Treat the offsets as record offsets: wait for offset + 1.")
    ] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Wait until records can be read from the offsets.")] = False,
    min_bytes: Annotated[int, typer.Option(help="Total bytes to wait for, over all partitions (with --fetch).")] = 1,
    replica_id: Annotated[int | None, typer.Option(help="Fetch as this follower (with --fetch).")] = None,
    read_committed: Annotated[
        bool, typer.Option(help="Count bytes up to the last stable offset only (with --fetch).")
    ] = False,
    delete_records: Annotated[
        bool,
        typer.Option(
            "--delete-records", help="Wait until all replicas have deleted up to the offsets (or the high watermark)."
        ),
    ] = False,
    signal: Annotated[
        bool, typer.Option("--signal", help="Wait until the keys are signalled; key@3: three times.")
    ] = False,
    any_key: Annotated[bool, typer.Option("--any", help="Wait for any one of the keys (with --signal).")] = False,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Ignore signals sent before this command (with --signal).")
    ] = False,
    fail_when_stale: Annotated[
        str | None,
        typer.Option("--fail-when-stale", help="Fail if a mark is stale or unreported for this long: 500ms, 5s."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Wait until the targets are reached and print the result. Offsets are compared with high watermarks by default."""

    async def call(client: AsyncClient) -> Exit:
        if [fetch, delete_records, signal, record].count(True) > 1:
            raise UsageError("--fetch, --delete-records, --signal and --record cannot be combined")
        limit = seconds(timeout)
        stale = None if fail_when_stale is None else seconds(fail_when_stale)
        if fetch:
            isolation: waits.Isolation = "read_committed" if read_committed else "read_uncommitted"
            offsets = partition_offsets(targets)
            read_by = partial(waits.fetch, replica_id=replica_id, isolation=isolation)
            one = read_by(offsets, min_bytes=min_bytes, timeout=limit, fail_when_stale=stale)
        elif delete_records:
            one = waits.delete_records(partition_offsets(targets, -1), timeout=limit, fail_when_stale=stale)
        elif signal:
            if stale is not None:
                raise UsageError("--fail-when-stale applies to marks, not to signals")
            one = waits.signal(key_counts(targets), timeout=limit, any=any_key, from_now=from_now)
        elif targets[0].startswith(FORM):
            if len(targets) > 1:
                raise UsageError("a token must be the only target; wait for one token at a time")
            result = await reached(client, Positions.of_token(targets[0]), limit, stale)
            return _show(result, as_json)
        else:
            offsets = {name: offset + record for name, offset in partition_offsets(targets).items()}
            one = waits.produce(offsets, timeout=limit, fail_when_stale=stale)
        return _show(await client.wait_once(one), as_json)

    raise typer.Exit(run(address, call))


@app.command("ls", epilog=epilog())
@secured
def ls(
    partitions: Annotated[
        bool, typer.Option("--partitions", "-p", help="List partitions instead of operations.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="Only topics with this prefix (with --partitions).")] = "",
    kind: Annotated[str | None, typer.Option(help="Only this kind: produce, fetch, delete_records or signal.")] = None,
    partition: Annotated[str | None, typer.Option(help="Only operations that wait on this partition.")] = None,
    key: Annotated[str, typer.Option(help="Only operations that wait on this key.")] = "",
    session: Annotated[str, typer.Option(help="Only this session.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 1_000,
    sort: Annotated[
        str | None,
        typer.Option(help="Sort all operations by remaining or waited time, most urgent first; lists at most 1,000."),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Least urgent first (with --sort).")] = False,
    search: Annotated[str, typer.Option(help="Only names that contain this text, ignoring case (with --sort).")] = "",
    watch: Watch = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """List pending operations, or known partitions."""

    async def call(client: AsyncClient) -> Exit:
        page = min(limit, 1_000)
        on = None if partition is None else checked_partition(partition)
        only = None if kind is None else kind_of(kind)
        order = None if sort is None else order_of(sort, reverse=reverse)
        if order is None and (reverse or search):
            raise UsageError("--reverse and --search need --sort")

        async def show() -> None:
            if order is not None:
                ranked = await client.ranked_operations(
                    order, limit=page, search=search, session_id=session, kind=only, partition=on, key=key
                )
                render.operations(ranked.operations, as_json=as_json)
            elif partitions:
                known = client.partitions(prefix=prefix, page_size=page)
                render.partitions([one async for one in _up_to(limit, known)], as_json=as_json)
            else:
                pending = client.operations(session_id=session, kind=only, partition=on, key=key, page_size=page)
                render.operations([one async for one in _up_to(limit, pending)], as_json=as_json)

        return await shown(watch, show)

    raise typer.Exit(run(address, call, interrupted="nothing was changed"))


@app.command("show", epilog=epilog())
@secured
def show(
    what: Annotated[str, typer.Argument(metavar="PARTITION|SESSION/ID", help="orders-3, or SESSION/17.")],
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Show a partition or a pending operation."""

    async def call(client: AsyncClient) -> Exit:
        reference = operation_reference(what)
        if reference is None:
            render.partition(await client.partition(checked_partition(what)), as_json=as_json)
        else:
            render.operation(await client.operation(*reference), as_json=as_json)
        return Exit.OK

    raise typer.Exit(run(address, call))


@app.command("cancel", epilog=epilog())
@secured
def cancel(
    operations: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION/ID]...", help="Operations to cancel.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Cancel all operations of this session.")] = None,
    partition: Annotated[str | None, typer.Option(help="Cancel all operations that wait on this partition.")] = None,
    key: Annotated[str | None, typer.Option(help="Cancel all operations that wait on this key.")] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Cancel pending operations. Exit code 16 if none was found."""

    async def call(client: AsyncClient) -> Exit:
        if [bool(operations), session is not None, partition is not None, key is not None].count(True) != 1:
            raise UsageError("give exactly one of: operations (SESSION/ID), --session, --partition, --key")
        count = 0
        for session_id, operation_id in [_reference(text) for text in operations or []]:
            count += await client.cancel([operation_id], session_id=session_id)
        if not operations:
            on = None if partition is None else checked_partition(partition)
            count = await client.cancel(session_id=session, partition=on, key=key)
        render.cancelled(count, as_json=as_json)
        return Exit.OK if count else Exit.NOT_FOUND

    raise typer.Exit(run(address, call))


@app.command("close", epilog=epilog())
@secured
def close(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Session id.")],
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Close a session: cancel its pending operations and drop its unacknowledged results."""

    async def call(client: AsyncClient) -> Exit:
        render.closed(await client.close_session(session), as_json=as_json)
        return Exit.OK

    raise typer.Exit(run(address, call))


@app.command("status", epilog=epilog())
@secured
def status(watch: Watch = None, address: Address = DEFAULT_ADDRESS, as_json: AsJson = False) -> NoReturn:
    """Show the daemon's version, its counters, and the remaining time of pending operations."""

    async def call(client: AsyncClient) -> Exit:
        async def show() -> None:
            render.status(await client.status(remaining_time=True), as_json=as_json)

        return await shown(watch, show)

    raise typer.Exit(run(address, call, interrupted="nothing was changed"))


@app.command("top", epilog=epilog())
@secured
def top(address: Address = DEFAULT_ADDRESS) -> NoReturn:
    """Show a live view of pending operations in the terminal, with keys to sort and filter."""
    try:
        from purgatory.cli.top import Top  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        render.error_line(f"`purgatory top` needs {error.name}; install it with: pip install 'purgatory-waits[top]'")
        raise typer.Exit(Exit.ERROR) from error

    async def call(client: AsyncClient) -> Exit:
        await Top(client).run_async()
        return Exit.OK

    raise typer.Exit(run(address, call, interrupted="nothing was changed"))


@app.command("serve", add_help_option=False, context_settings=_PASSED_ON)
def serve(context: typer.Context) -> NoReturn:
    """Run the daemon; see `purgatory serve --help` for its settings."""
    try:
        from purgatory.extensions.installed import ALL  # noqa: PLC0415 - as above
        from purgatory.run_daemon import main as run_daemon  # noqa: PLC0415 - the client runs without the server's packages
    except ModuleNotFoundError as error:
        render.error_line(f"the daemon needs {error.name}; install it with: pip install 'purgatory-waits[server]'")
        raise typer.Exit(Exit.ERROR) from error
    raise typer.Exit(run_daemon(ALL, context.args, program="purgatory serve"))


@app.command("journal", add_help_option=False, context_settings=_PASSED_ON)
def journal(context: typer.Context) -> NoReturn:
    """Check, export or import a journal; see `purgatory journal --help`."""
    from purgatory.journal.maintenance import main as run_journal  # noqa: PLC0415 - only this command needs the engine

    raise typer.Exit(run_journal(context.args))


@app.command("token", add_help_option=False, context_settings=_PASSED_ON)
def token(context: typer.Context) -> NoReturn:
    """Create and list the daemon's bearer tokens; see `purgatory token --help`."""
    raise typer.Exit(_access_commands().run_token(context.args))


@app.command("policy", add_help_option=False, context_settings=_PASSED_ON)
def policy(context: typer.Context) -> NoReturn:
    """Check a policy file, or what it permits a caller; see `purgatory policy --help`."""
    raise typer.Exit(_access_commands().run_policy(context.args))


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="purgatory", args=sys.argv[1:])


def _access_commands() -> ModuleType:
    try:
        from purgatory.service.access import commands  # noqa: PLC0415 - the client runs without the server's packages
    except ModuleNotFoundError as error:
        render.error_line(f"this needs {error.name}; install it with: pip install 'purgatory-waits[server]'")
        raise typer.Exit(Exit.ERROR) from error
    return commands


def _show(result: Result, as_json: bool) -> Exit:
    render.result(result, as_json=as_json)
    return OF_OUTCOME[result.outcome]


def _reference(text: str) -> tuple[str, int]:
    reference = operation_reference(text)
    if reference is None:
        raise UsageError(f"not an operation: {text!r}; expected SESSION/ID as shown by `purgatory ls`")
    return reference


async def _up_to(limit: int, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield the first `limit` items, and print a message on stderr if there are more."""
    count = 0
    async for item in items:
        if count == limit:
            render.error_line(f"only the first {limit} are listed; see --limit")
            return
        count += 1
        yield item
