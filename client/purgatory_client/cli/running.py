"""Runs a command against the daemon and turns its end into an exit code and, if need be, a message."""

import asyncio
from collections.abc import Awaitable, Callable

from purgatory_client.aio import AsyncClient
from purgatory_client.cli import render
from purgatory_client.cli.exits import Exit, exit_of_error
from purgatory_client.cli.parsing import UsageError
from purgatory_client.errors import EventRefused, InvalidRequest, PurgatoryClientError, Unavailable

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
    except Unavailable as error:
        render.error_line(f"the daemon at {address} is not available: {error}")
        return Exit.UNAVAILABLE
    except (InvalidRequest, EventRefused) as error:
        render.error_line(f"refused: {error}")
        return Exit.REFUSED
    except PurgatoryClientError as error:
        render.error_line(str(error))
        return exit_of_error(error)


async def _with_client(address: str, command: Command) -> Exit:
    async with AsyncClient(address, name="cli") as client:
        return await command(client)
