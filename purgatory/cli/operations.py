"""Commands that list, show and change operations, sessions and partitions, and the two with optional packages."""

import sys
from collections.abc import AsyncIterator
from typing import Annotated, Final, TypeVar

import typer
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import Unavailable
from purgatory_client.unary import Filters
from purgatory_client.views import OperationOrder
from typer import Argument, Option

from purgatory.cli import render
from purgatory.cli.all_shards import AllShards, Watch, merged, over_shards, shown
from purgatory.cli.completion import (
    KeyOption,
    Kind,
    Operations,
    PartitionOption,
    SessionOption,
    choice,
    sessions,
    shown_names,
    topics,
)
from purgatory.cli.exit_codes import Exit
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

T = TypeVar("T")

SNAPSHOT_ROWS: Final = 20


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
    on = None if partition is None else checked_partition(partition)
    filters: Filters = {"session_id": session, "kind": kind_of(kind), "partition": on, "key": key}
    page = min(limit, 1_000)
    order = None if sort is None else order_of(sort, reverse=reverse)
    if order is None and (reverse or search):
        raise UsageError("--reverse and --search need --sort")

    async def show() -> None:
        listed = await over_shards(client)
        if order is not None:
            ranked = await listed.ranked_operations(order, limit=page, search=search, **filters)
            render.operations(ranked.operations)
            if ranked.matching > len(ranked.operations):
                render.error_line(f"listed {len(ranked.operations):,} of {ranked.matching:,}; see --limit")
        elif partitions:
            render.partitions(await _up_to(limit, listed.partitions(prefix, page)))
        else:
            render.operations(await _up_to(limit, listed.operations(page, **filters)))

    return await shown(watch, show)


async def show(
    client: AsyncClient,
    what: Annotated[
        str, Argument(metavar="PARTITION|SESSION/ID", autocompletion=shown_names, help="orders-3, or SESSION/17.")
    ],
) -> Exit:
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
    render.closed(await client.close_session(session))
    return Exit.OK


async def status(client: AsyncClient, watch: Watch = None) -> Exit:
    async def show() -> None:
        counted = await over_shards(client)
        statuses = await counted.statuses(remaining_time=True)
        render.status(merged(statuses))
        if len(statuses) > 1:
            render.shards((one.address, status) for one, status in zip(counted.shards, statuses, strict=True))
        for lost in statuses:
            if isinstance(lost, Unavailable):
                raise lost

    return await shown(watch, show)


async def top(client: AsyncClient) -> Exit:
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):  # None: closed
        return await _snapshot(await over_shards(client))
    try:
        from purgatory.cli.top import Top  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        raise missing("top", error, "top") from error
    await Top(await over_shards(client)).run_async()
    return Exit.OK


async def _snapshot(client: AllShards) -> Exit:
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


def missing(command: str, error: ModuleNotFoundError, extra: str, otherwise: str = "") -> typer.Exit:
    """Print which package a command needs; returns what ends the program."""
    advice = f"install it with: pip install 'purgatory-waits[{extra}]'{otherwise}"
    render.error_line(f"`purgatory {command}` needs {error.name}; {advice}")
    return typer.Exit(Exit.ERROR)


async def mcp(client: AsyncClient) -> Exit:
    try:
        from purgatory.cli.mcp_server import serve as serve_tools  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        raise missing("mcp", error, "mcp") from error
    await serve_tools(client)
    return Exit.OK


async def _up_to(limit: int, items: AsyncIterator[T]) -> list[T]:
    """The first `limit` items. Prints a message on stderr if there are more."""
    found: list[T] = []
    async for item in items:
        if len(found) == limit:
            render.error_line(f"listed {limit:,}, and there are more; see --limit")
            break
        found.append(item)
    return found
