"""What the commands share: the options that all of them have, and how they are run against the daemon."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.cli import render
from purgatory_client.cli.exits import Exit, exit_of_error
from purgatory_client.cli.parsing import UsageError
from purgatory_client.errors import EventRefused, InvalidRequest, PurgatoryClientError, Unavailable

__all__ = ["DEFAULT_ADDRESS", "Address", "AsJson", "run"]

Address = Annotated[
    str, typer.Option("--address", "-a", envvar="PURGATORY_ADDRESS", help="The daemon's gRPC address, host:port.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

Command = Callable[[AsyncClient], Awaitable[Exit]]


def run(address: str, command: Command, *, interrupted: str = "a wait is cancelled at the daemon") -> Exit:
    """Run a command and return its exit code. `interrupted`: what Ctrl-C leaves behind, for the message."""
    try:
        return asyncio.run(_with_client(address, command))
    except KeyboardInterrupt:
        render.error_line(f"interrupted; {interrupted}")
        return Exit.INTERRUPTED
    except UsageError as error:
        render.error_line(str(error))
        return Exit.USAGE
    except PurgatoryClientError as error:
        message = str(error)
        if isinstance(error, Unavailable):
            message = f"the daemon at {address} is not available: {error}"
        elif isinstance(error, InvalidRequest | EventRefused):
            message = f"refused: {error}"
        render.error_line(message)
        return exit_of_error(error)


async def _with_client(address: str, command: Command) -> Exit:
    async with AsyncClient(address, name="cli") as client:
        return await command(client)
