"""Commands that list, show and change operations, sessions, partitions and dead letters, and `top` and `mcp`."""

import sys
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import click
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import Unavailable
from purgatory_client.results import OperationKind
from purgatory_client.unary import Filters
from purgatory_client.views import DeadLetter, OperationOrder

from purgatory.cli import completion, parsing, render
from purgatory.cli.all_shards import WATCH, AllShards, merged, over_shards, shown
from purgatory.cli.connection_options import READS, WAITS, WRITES, client_command
from purgatory.cli.exit_codes import Exit
from purgatory.command_line import Whole

T = TypeVar("T")

SNAPSHOT_ROWS: Final = 20


@client_command(READS)
@parsing.flag("--partitions", "-p", help="List partitions instead of operations.")
@click.option(
    "--prefix",
    metavar="TEXT",
    shell_complete=completion.topics,
    help="Only topics with this prefix (with --partitions).",
)
@completion.KIND
@completion.partition_option(help="Only operations that wait on this partition.")
@completion.key_option("--key", help="Only operations that wait on this key.")
@completion.session_option(help="Only this session.")
@click.option("--limit", type=Whole(min=1), default=1_000, help="Maximum number of entries.")
@click.option(
    "--sort",
    type=parsing.order_of,
    metavar="remaining|waited",
    shell_complete=completion.choice(parsing.ORDERS),
    help="Sort all operations by remaining or waited time, most urgent first; lists at most 1,000.",
)
@parsing.flag("--reverse", help="Least urgent first.")
@click.option("--search", metavar="TEXT", help="Only names that contain this text, ignoring case.")
@WATCH
async def ls(
    client: AsyncClient,
    partitions: bool,
    prefix: str | None,
    kind: OperationKind | None,
    partition: str | None,
    key: str | None,
    session: str | None,
    limit: int,
    sort: tuple[OperationOrder, OperationOrder] | None,
    reverse: bool,
    search: str | None,
    watch: float | None,
) -> Exit:
    filters: Filters = {"session_id": session or "", "kind": kind, "partition": partition, "key": key or ""}
    page = min(limit, 1_000)
    order = (sort or parsing.ORDERS["remaining"])[reverse] if sort or reverse or search else None
    if partitions and (order or any(filters.values())):
        raise parsing.UsageError("--partitions can be combined with --prefix, --limit and --watch only")
    if prefix and not partitions:
        raise parsing.UsageError("--prefix requires --partitions")

    async def show() -> None:
        listed = await over_shards(client)
        if order is not None:
            ranked = await listed.ranked_operations(order, limit=page, search=search or "", **filters)
            render.operations(ranked.operations)
            if ranked.matching > len(ranked.operations):
                render.error_line(f"listed {len(ranked.operations):,} of {ranked.matching:,}; see --limit")
        elif partitions:
            render.partitions(await _up_to(limit, listed.partitions(prefix or "", page)))
        else:
            render.operations(await _up_to(limit, listed.operations(page, **filters)))

    return await shown(watch, show)


@client_command(READS)
@click.argument(
    "what", metavar="PARTITION|SESSION/ID", shell_complete=completion.shown_names, help="orders-3, or SESSION/17."
)
async def show(client: AsyncClient, what: str) -> Exit:
    if parsing.is_reference(what):
        render.operation(await client.operation(*parsing.operation_reference(what)))
    else:
        render.partition(await client.partition(parsing.checked_partition(what)))
    return Exit.OK


@client_command(WRITES)
@completion.operations_argument(help="Operations to cancel.")
@completion.session_option(help="Cancel all operations of this session.")
@completion.partition_option(help="Cancel all operations that wait on this partition.")
@completion.key_option("--key", help="Cancel all operations that wait on this key.")
async def cancel(
    client: AsyncClient,
    operations: tuple[tuple[str, int], ...],
    session: str | None,
    partition: str | None,
    key: str | None,
) -> Exit:
    if [bool(operations), session is not None, partition is not None, key is not None].count(True) != 1:
        raise parsing.UsageError("give exactly one of: operations (SESSION/ID), --session, --partition, --key")
    count = 0
    for session_id, operation_id in operations:
        count += await client.cancel([operation_id], session_id=session_id)
    if not operations:
        count = await client.cancel(session_id=session, partition=partition, key=key)
    render.cancelled(count)
    return Exit.OK if count else Exit.NOT_FOUND


@client_command(WRITES)
@completion.operations_argument(required=True, help="Operations, as shown by `purgatory ls`.")
@parsing.TIMEOUT
async def extend(
    client: AsyncClient,
    operations: tuple[tuple[str, int], ...],
    timeout: float,  # noqa: ASYNC109 - the operations' own
) -> Exit:
    by_session: dict[str, list[int]] = {}
    for session_id, operation_id in operations:
        by_session.setdefault(session_id, []).append(operation_id)
    gone = {
        (session_id, operation_id)
        for session_id, ids in by_session.items()
        for operation_id in await client.extend(ids, timeout, session_id=session_id)
    }
    render.extended([(f"{session_id}/{number}", (session_id, number) not in gone) for session_id, number in operations])
    return Exit.NOT_FOUND if gone else Exit.OK


@client_command(WRITES)
@click.argument("session", metavar="SESSION", shell_complete=completion.sessions, help="Session id.")
async def close(client: AsyncClient, session: str) -> Exit:
    render.closed(await client.close_session(session))
    return Exit.OK


@client_command(WRITES)
@completion.letter_option("--resend", help="Resend this letter now. May be repeated.")
@parsing.flag("--resend-all", help="Resend all letters now.")
@completion.letter_option("--delete", help="Delete this letter; its result is lost. May be repeated.")
async def dead_letters(client: AsyncClient, resend: tuple[str, ...], resend_all: bool, delete: tuple[str, ...]) -> Exit:
    """Exit code 16 if a given ID does not exist, or there is nothing to resend."""
    if [bool(resend), resend_all, bool(delete)].count(True) > 1:
        raise parsing.UsageError("--resend, --resend-all and --delete cannot be combined")
    if delete:
        return _report_letters("deleted", "deleted", *await client.delete_dead_letters(delete))
    if resend or resend_all:
        return _report_letters("resent", "resending", *await client.resend_dead_letters(resend or None))
    _print_letters([letter async for letter in client.dead_letters()])
    return Exit.OK


def _report_letters(field: str, verb: str, count: int, unknown: tuple[str, ...]) -> Exit:
    for one in unknown:
        render.error_line(f"no such dead letter: {one} (it may have been delivered or deleted)")
    done = [f"{verb} {render.counted(count, 'letter')}"] if count else []
    counts = {field: count} | ({"unknown_webhook_ids": unknown} if unknown else {})
    render.print_either(counts, *(done or ([] if unknown else ["no dead letters"])))
    return Exit.OK if count and not unknown else Exit.NOT_FOUND


def _print_letters(letters: list[DeadLetter]) -> None:
    if render.print_as_json(letters):
        return
    if not letters:
        render.print_lines("no dead letters")
    for letter in letters:
        operation = f"{render.escape(letter.session_id)}/{letter.operation_id}"
        render.print_lines(
            f"[bold]{render.escape(letter.webhook_id)}[/bold]  {operation}  {render.outcome_text(letter.outcome)}",
            f"  to {render.escape(letter.callback_url)}",
            f"  {render.counted(letter.attempts, 'attempt')}: {render.escape(letter.last_error)}",
        )


@client_command(READS)
@WATCH
async def status(client: AsyncClient, watch: float | None) -> Exit:
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


@client_command(READS, as_json=False)
async def top(client: AsyncClient) -> Exit:
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):  # None: closed
        return await _snapshot(await over_shards(client))
    try:
        from purgatory.cli.top import Top  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        parsing.exit_without("top", error, "top")
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


@client_command(WAITS, as_json=False)
async def mcp(client: AsyncClient) -> Exit:
    try:
        from purgatory.cli.mcp_server import serve as serve_tools  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        parsing.exit_without("mcp", error, "mcp")
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
