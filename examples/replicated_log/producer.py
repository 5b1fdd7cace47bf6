"""The producer: appends every line of a file with acks=all, many at once, and checks that each is acknowledged once.

Lines are bytes between newlines, sent exactly as they are. At the places in `pause_at` it stops and waits for a word
from its starter, so that what happens to the cluster happens at a known place.
"""

import asyncio
from pathlib import Path
from typing import Final

import grpc.aio

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.wire import Message, connect, open_stream

IN_FLIGHT_MAX: Final = 64
TIMEOUT_S: Final = 20.0
PROGRESS_STEPS: Final = 10
PROGRESS_RECORDS_MAX: Final = 10_000
"""It says how far it is this often at least, so that silence means trouble."""


class NotAcknowledged(Exception):
    """A record was refused or timed out, or was acknowledged twice."""


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a file: what stands before each newline, and after the last one if anything does."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


async def produce(starter: Starter, leader_port: int, source: str, pause_at: list[int]) -> None:
    """Send every line in order, at most `IN_FLIGHT_MAX` of them unacknowledged, until all are acknowledged."""
    lines = split_lines(await asyncio.to_thread(Path(source).read_bytes))
    room = asyncio.Semaphore(IN_FLIGHT_MAX)
    async with connect(leader_port) as channel, asyncio.TaskGroup() as group:
        stream = open_stream(channel, "append")
        group.create_task(_take_acknowledgements(stream, len(lines), room))
        for offset, line in enumerate(lines):
            if offset in pause_at:
                say("paused", at=offset)
                await starter.next_word()
            await room.acquire()
            await stream.write(Message({"timeout_s": TIMEOUT_S}, line))
    say("done", acknowledged=len(lines))


async def _take_acknowledgements(
    stream: grpc.aio.StreamStreamCall[Message, Message], count: int, room: asyncio.Semaphore
) -> None:
    step = min(max(1, count // PROGRESS_STEPS), PROGRESS_RECORDS_MAX)
    missing = set(range(count))
    while missing:
        answer = await stream.read()
        if not isinstance(answer, Message):
            raise NotAcknowledged(f"the leader has ended the stream: {await stream.details()}")
        offset, error, high_watermark = (answer.fields[name] for name in ("offset", "error", "high_watermark"))
        if error or offset not in missing or high_watermark <= offset:
            raise NotAcknowledged(str(answer.fields))
        missing.remove(offset)
        if (count - len(missing)) % step == 0:
            say("progress", acknowledged=count - len(missing))
        room.release()


if __name__ == "__main__":
    run_child(produce)
