"""Makes commands of async functions: adds the options that all commands have, and turns errors into exit codes."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import Any, Final, NoReturn, TypeVar

import click
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import EventRefused, InvalidRequest, PurgatoryClientError, Unavailable

from purgatory.cli import render
from purgatory.cli.exit_codes import Exit, exit_of_error
from purgatory.command_line import Command
from purgatory.connection_flags import CONNECTION

T = TypeVar("T")

WAITS: Final = "a wait is cancelled at the daemon"
READS: Final = "nothing was changed"
WRITES: Final = "the daemon may have applied it"

JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of text.")


def client_command(
    interrupted: str, *, as_json: bool = True, params: Sequence[click.Parameter] = ()
) -> Callable[[Callable[..., Awaitable[Exit]]], click.Command]:
    """Make a command of a function whose first parameter is a connected client and which returns the exit code.

    `interrupted` is the message after Ctrl-C, with the function's arguments in braces. `as_json`: has `--json`.
    """

    def decorate(function: Callable[..., Awaitable[Exit]]) -> click.Command:
        @wraps(function)
        def callback(**given: Any) -> NoReturn:  # noqa: ANN401 - as the function has them
            options = {name: given.pop(name) for name in CONNECTION}
            render.AS_JSON.set(given.pop("as_json", False))
            sys.exit(_run(options, partial(function, **given), interrupted.format(**given)))

        command = click.command(cls=Command, params=[*params])(callback)
        command.params += [*[JSON] * as_json, *CONNECTION.values()]
        return command

    return decorate


def _run(options: dict[str, Any], call: Callable[[AsyncClient], Awaitable[Exit]], interrupted: str) -> Exit:
    try:
        return asyncio.run(connected(options, call))
    except KeyboardInterrupt:
        render.error_line(f"interrupted; {interrupted}")
        return Exit.INTERRUPTED
    except PurgatoryClientError as error:
        message = str(error)
        if isinstance(error, Unavailable) and not error.is_answer:
            given = options["address"]
            where = f"{given} (--address, PURGATORY_ADDRESS)" if error.address in {"", given} else error.address
            message = f"the daemon at {where} is not available: {str(error).removeprefix(f'{given}: ')}"
        elif isinstance(error, EventRefused) or (isinstance(error, InvalidRequest) and error.is_answer):
            message = f"refused: {error}"
        render.error_line(message)
        return exit_of_error(error)


async def connected(options: dict[str, Any], call: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Call with a client that has these options. Raises InvalidRequest if they are invalid."""
    security = {name: value for name, value in options.items() if name.startswith("tls")}
    async with AsyncClient(options["address"], name="cli", token=options["token_file"], **security) as client:
        return await call(client)
