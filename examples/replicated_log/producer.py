"""The producer: appends every line of a file with acks=all, many at once, and checks that each is acknowledged once.

Lines are bytes between newlines, sent exactly as they are. At the places given by --pause-at it stops and waits for a
word from its starter, so that what happens to the cluster happens at a known place.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Final

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.wire import Connection, Message

IN_FLIGHT_MAX: Final = 64
TIMEOUT_MS: Final = 20_000
PROGRESS_STEPS: Final = 10
PROGRESS_RECORDS_MAX: Final = 10_000
"""It says how far it is this often at least, so that silence means trouble."""


class NotAcknowledged(Exception):
    """A record was refused, timed out, or was given another offset than the order of sending asks for."""


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a file: what stands before each newline, and after the last one if anything does."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


class Producer:
    """Sends lines over one connection, in order, with a bounded number unacknowledged."""

    def __init__(self, connection: Connection, lines: list[bytes]) -> None:
        self._connection = connection
        self._lines = lines
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._acknowledged = 0
        self._step = min(max(1, len(lines) // PROGRESS_STEPS), PROGRESS_RECORDS_MAX)

    async def run(self, starter: Starter, pause_at: list[int]) -> None:
        """Sends everything and returns when all of it is acknowledged."""
        async with asyncio.TaskGroup() as group:
            for offset, line in enumerate(self._lines):
                if offset in pause_at:
                    say("paused", at=offset)
                    await starter.next_word()
                await self._room.acquire()
                answer = self._connection.send("append", line, acks="all", timeout_ms=TIMEOUT_MS)
                group.create_task(self._acknowledge(offset, answer))
                await self._connection.drain()
        say("done", acknowledged=self._acknowledged)

    async def _acknowledge(self, offset: int, answer: asyncio.Future[Message]) -> None:
        header = (await answer).header
        if header["error"] != 0 or header["offset"] != offset or header["high_watermark"] <= offset:
            raise NotAcknowledged(f"line {offset + 1}: {header}")
        self._acknowledged += 1
        if self._acknowledged % self._step == 0:
            say("progress", acknowledged=self._acknowledged)
        self._room.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leader-port", required=True, type=int, help="where the leader listens on this machine")
    parser.add_argument("--input", required=True, type=Path, help="the file whose lines are sent")
    parser.add_argument("--pause-at", type=int, nargs="*", default=[], help="lines before which to wait for a word")
    options = parser.parse_args()

    async def run(starter: Starter) -> None:
        connection = await Connection.open(options.leader_port)
        await Producer(connection, split_lines(options.input.read_bytes())).run(starter, options.pause_at)
        await connection.close()

    run_child(run)


if __name__ == "__main__":
    main()
