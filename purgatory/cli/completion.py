"""Completion of values in the shell: names from the daemon, and the flags of commands that have their own parser.

A value for which nothing is offered is completed by the shell, as a file name.
"""

import argparse
import asyncio
import os
import pkgutil
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer
from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.views import OperationOrder
from typer import Argument, Option
from typer.core import CompletionItem, TyperCommand  # type: ignore[attr-defined]  # its copy of click is private

from purgatory.cli.connection_options import OPTIONS, connected
from purgatory.cli.parsing import KINDS, SIGNAL_PREFIX, UsageError

PATIENCE_S: Final = 2.0
NAMES_MAX: Final = 1_000
HARMLESS: Final = re.compile(r"[\w./:@-]+", re.ASCII)
"""Names are chosen by other callers, and shells evaluate what is offered to them."""


Find = Callable[[AsyncClient, str], Awaitable[list[str]]]


def from_daemon(*finds: Find) -> Callable[[typer.Context, str], list[str]]:
    """Make a completion function that offers what these find; nothing if the daemon does not answer in time."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        async def ask(client: AsyncClient) -> set[str]:
            async with asyncio.timeout(PATIENCE_S):
                return {name for find in finds for name in await find(client, incomplete)}

        options = {name: ctx.params.get(name) or default for name, (_, default) in OPTIONS.items()}
        # `ready` has no address of gRPC.
        options["address"] = ctx.params.get("address") or os.environ.get("PURGATORY_ADDRESS", DEFAULT_ADDRESS)
        try:
            found = asyncio.run(connected(options, ask))
        except (PurgatoryClientError, TimeoutError, UsageError):
            return []
        return sorted(filter(HARMLESS.fullmatch, found))

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


def choice(names: Iterable[str]) -> Callable[[], list[str]]:
    """Make a completion function that offers these names."""
    return lambda: list(names)


partitions: Final = from_daemon(_partitions)
topics: Final = from_daemon(_topics)
keys: Final = from_daemon(_keys)
sessions: Final = from_daemon(_sessions)
shown_names: Final = from_daemon(_partitions, _operations)
targets: Final = from_daemon(_partitions, _signals)

PartitionOption: Final = partial(Option, metavar="PARTITION", autocompletion=partitions)
Targets: Final = partial(Argument, metavar="TARGET", autocompletion=targets)
TargetOption: Final = partial(Option, metavar="TARGET", autocompletion=targets)
KeyOption: Final = partial(Option, metavar="KEY", autocompletion=keys)
SessionOption: Final = partial(Option, metavar="SESSION", autocompletion=sessions)
LetterOption: Final = partial(Option, metavar="ID", autocompletion=from_daemon(_letters))
Operations: Final = partial(Argument, metavar="SESSION/ID", autocompletion=from_daemon(_operations))
Kind = Annotated[
    str | None, Option(metavar="KIND", autocompletion=choice(KINDS), help=f"Only this kind: {', '.join(KINDS)}.")
]


def passed_on(parser: str) -> type[TyperCommand]:
    """The class of a command that passes its arguments on to a parser of argparse, which is asked for completion.

    `parser`: the function that makes it, as module:function.
    """

    class PassedOn(TyperCommand):
        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401 - typer has a copy of click's
            try:
                made = pkgutil.resolve_name(parser)()
            except ImportError:  # the server's packages are not installed
                return []
            # Shells may split --flag=value into three words.
            given = [word for word in ctx.args if word != "="]
            offered = offers(made, given, incomplete)
            return [CompletionItem(name) for name in offered if name.startswith(incomplete)]

    return PassedOn


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[Any]:
    return (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))  # noqa: SLF001 - as above


def offers(parser: argparse.ArgumentParser, given: Sequence[str], incomplete: str) -> list[str]:
    """The words that may follow the given ones: options, the choices of one, or subcommands."""
    for word in given:
        parser = next((one.choices[word] for one in _subcommands(parser) if word in one.choices), parser)
    options = {name: one for one in parser._actions for name in one.option_strings}  # noqa: SLF001 - as argcomplete
    last = options.get(given[-1]) if given else None
    if last is not None and last.nargs != 0:
        # The flag of a setting has its choices as metavar only: the settings check the values.
        shown = str(last.metavar)
        return list(last.choices or (shown.split("|") if "|" in shown else ()))
    if incomplete.startswith("-"):
        return list(options)
    return [name for one in _subcommands(parser) for name in one.choices]
