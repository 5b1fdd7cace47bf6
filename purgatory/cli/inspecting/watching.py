"""`--watch` repeats a command's output until interrupted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from purgatory_client.errors import Unavailable
from typer import Option

from purgatory.cli import render
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, seconds

INTERVAL_S_MIN: Final = 0.1

Watch = Annotated[
    str | None, Option("--watch", "-w", metavar="INTERVAL", help="Repeat at this interval until Ctrl-C: 500ms, 2s.")
]


async def shown(watch: str | None, show: Callable[[], Awaitable[None]]) -> Exit:
    """Call `show` once, or with `watch` until interrupted. While the daemon is unavailable, keep trying."""
    if watch is None:
        await show()
        return Exit.OK
    interval_s = seconds(watch)
    if interval_s < INTERVAL_S_MIN:
        raise UsageError(f"--watch {watch} is too short; the minimum is {INTERVAL_S_MIN} s")
    while True:
        render.clear()
        try:
            await show()
        except Unavailable as error:
            render.error_line(str(error))
        await asyncio.sleep(interval_s)
