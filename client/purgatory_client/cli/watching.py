"""`--watch`: a command's output again and again, for a person to look at."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer

from purgatory_client.cli import render
from purgatory_client.cli.exit_codes import Exit
from purgatory_client.cli.parsing import UsageError, seconds
from purgatory_client.errors import Unavailable

INTERVAL_S_MIN: Final = 0.1

Watch = Annotated[
    str | None,
    typer.Option("--watch", "-w", metavar="INTERVAL", help="Show it again this often, until Ctrl-C: 500ms, 2s."),
]


async def shown(watch: str | None, show: Callable[[], Awaitable[None]]) -> Exit:
    """Shows something once, or with `watch` until interrupted; a daemon that is away is waited for."""
    if watch is None:
        await show()
        return Exit.OK
    interval_s = seconds(watch)
    if interval_s < INTERVAL_S_MIN:
        raise UsageError(f"--watch {watch} is too often; at least {INTERVAL_S_MIN} s")
    while True:
        render.clear()
        try:
            await show()
        except Unavailable as error:
            render.error_line(str(error))
        await asyncio.sleep(interval_s)
