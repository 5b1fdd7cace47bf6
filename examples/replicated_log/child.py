"""What every process of the log does alike. It takes its options as JSON and says things to its starter on stdout, one
JSON object a line. It ends with SIGTERM or when its stdin closes, so that none outlives the one that started it.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable


def say(event: str, **fields: object) -> None:
    """Write an event to stdout, for the starter."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Starter:
    """The process that started this one, as seen from here."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[str] = asyncio.Queue()

    async def next_word(self) -> str:
        return await self._words.get()

    async def wait_gone(self) -> None:
        """Return when our stdin is closed, which the starter's death does too."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._words.put_nowait(line.decode().strip())


def run_child(main: Callable[..., Awaitable[None]]) -> None:
    """Run `main(starter, **options)` until it returns, SIGTERM comes, or the starter is gone. When it raises, the
    process ends with 1.
    """
    asyncio.run(_run(main, json.loads(sys.argv[1])))


async def _run(main: Callable[..., Awaitable[None]], options: dict[str, object]) -> None:
    starter = Starter()
    work = asyncio.ensure_future(main(starter, **options))
    gone = asyncio.create_task(starter.wait_gone())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, gone.cancel)
    await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
    gone.cancel()
    if not work.cancelled():
        work.result()
