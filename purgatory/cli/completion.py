"""Options whose values the shell completes: names from the daemon, and known words."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import click
from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.views import OperationOrder

from purgatory.cli.connection_options import connected
from purgatory.cli.parsing import KINDS, SIGNAL_PREFIX, UsageError, checked_partition, kind_of, operation_reference
from purgatory.command_line import starting
from purgatory.connection_flags import CONNECTION

PATIENCE_S: Final = 2.0
NAMES_MAX: Final = 1_000
HARMLESS: Final = re.compile(r"[\w./:@-]+", re.ASCII)
"""Names are chosen by other callers, and shells evaluate what is offered to them."""

Find = Callable[[AsyncClient, str], Awaitable[list[str]]]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def from_daemon(*finds: Find) -> Complete:
    """Make a completion function that offers what these find; nothing if the daemon does not answer in time."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        async def ask(client: AsyncClient) -> set[str]:
            async with asyncio.timeout(PATIENCE_S):
                return {name for find in finds for name in await find(client, incomplete)}

        options = {name: ctx.params.get(name) for name in CONNECTION}
        # `ready` has no address of gRPC.
        options["address"] = options["address"] or os.environ.get("PURGATORY_ADDRESS", DEFAULT_ADDRESS)
        try:
            found = asyncio.run(connected({**options, "tls": bool(options["tls"])}, ask))
        except (PurgatoryClientError, TimeoutError, UsageError):
            return []
        return sorted(filter(HARMLESS.fullmatch, starting(found, incomplete)))

    return complete


async def _partitions(client: AsyncClient, typed: str) -> list[str]:
    found: list[str] = []
    async for one in client.partitions(prefix=typed.rpartition("-")[0] or typed, page_size=NAMES_MAX):
        found.append(one.name)
        if len(found) == NAMES_MAX:
            break
    return found


async def _topics(client: AsyncClient, typed: str) -> list[str]:
    return [name.rpartition("-")[0] for name in await _partitions(client, typed)]


async def _keys(client: AsyncClient, _typed: str) -> list[str]:
    return [one.name for one in await client.hot_names(NAMES_MAX) if one.is_key]


async def _signals(client: AsyncClient, typed: str) -> list[str]:
    return [SIGNAL_PREFIX + key for key in await _keys(client, typed)]


async def _operations(client: AsyncClient, _typed: str) -> list[str]:
    ranked = await client.ranked_operations(OperationOrder.LEAST_REMAINING, limit=NAMES_MAX)
    return [f"{one.session_id}/{one.operation_id}" for one in ranked.operations if one.session_id]


async def _sessions(client: AsyncClient, typed: str) -> list[str]:
    return [name.rpartition("/")[0] for name in await _operations(client, typed)]


async def _letters(client: AsyncClient, _typed: str) -> list[str]:
    return [one.webhook_id async for one in client.dead_letters(page_size=NAMES_MAX)]


def choice(names: Iterable[str]) -> Complete:
    return lambda _context, _parameter, incomplete: starting(names, incomplete)


partitions: Final = from_daemon(_partitions)
topics: Final = from_daemon(_topics)
keys: Final = from_daemon(_keys)
sessions: Final = from_daemon(_sessions)
shown_names: Final = from_daemon(_partitions, _operations)
targets: Final = from_daemon(_partitions, _signals)

partition_option: Final = partial(
    click.option, "--partition", type=checked_partition, metavar="PARTITION", shell_complete=partitions
)
key_option: Final = partial(click.option, metavar="KEY", shell_complete=keys)
session_option: Final = partial(click.option, "--session", metavar="SESSION", shell_complete=sessions)
letter_option: Final = partial(click.option, metavar="ID", multiple=True, shell_complete=from_daemon(_letters))
operations_argument: Final = partial(
    click.argument,
    "operations",
    type=operation_reference,
    metavar="SESSION/ID",
    nargs=-1,
    shell_complete=from_daemon(_operations),
)
marks_argument: Final = partial(
    click.argument, "marks", nargs=-1, required=True, metavar="MARK...", shell_complete=topics
)
KIND: Final = click.option(
    "--kind", type=kind_of, metavar="KIND", shell_complete=choice(KINDS), help=f"Only this kind: {', '.join(KINDS)}."
)
