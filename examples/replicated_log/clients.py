"""The producer, which appends lines with acks=all, and the consumer, which reads them by long poll."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc.aio

from examples.replicated_log.log_file import LogRecord, decode_all
from examples.replicated_log.wire import Message, call, connect, open_stream

IN_FLIGHT_MAX: Final = 64
APPEND_TIMEOUT_S: Final = 20.0
FETCH_BYTES_MIN: Final = 2048
FETCH_BYTES_MAX: Final = 256 * 1024
FETCH_WAIT_S: Final = 0.3


class NotAcknowledged(Exception):
    """A record was refused, timed out, or was acknowledged twice."""


class WrongRecord(Exception):
    """The leader returned a record out of order, or one that is not committed."""


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a file, without their newlines."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


async def produce(leader_port: int, lines: list[bytes], before: Callable[[int], Awaitable[None]]) -> None:
    """Send every line in order, with at most `IN_FLIGHT_MAX` unacknowledged, until all are acknowledged.

    `before(offset)` is awaited before each line is sent.
    """
    room = asyncio.Semaphore(IN_FLIGHT_MAX)
    async with connect(leader_port) as channel, asyncio.TaskGroup() as group:
        stream = open_stream(channel, "append")
        group.create_task(_read_acknowledgements(stream, len(lines), room))
        for offset, line in enumerate(lines):
            await before(offset)
            await room.acquire()
            await stream.write(Message({"timeout_s": APPEND_TIMEOUT_S}, line))


async def _read_acknowledgements(
    stream: grpc.aio.StreamStreamCall[Message, Message], count: int, room: asyncio.Semaphore
) -> None:
    missing = set(range(count))
    while missing:
        answer = await stream.read()
        if not isinstance(answer, Message):
            raise NotAcknowledged(f"the leader closed the stream: {await stream.details()}")
        offset, error, high_watermark = (answer.fields[name] for name in ("offset", "error", "high_watermark"))
        if error or offset not in missing or high_watermark <= offset:
            raise NotAcknowledged(str(answer.fields))
        missing.remove(offset)
        room.release()


async def consume(leader_port: int, count: int) -> list[LogRecord]:
    """Read `count` records from the start of the log. Raises WrongRecord."""
    records: list[LogRecord] = []
    wanted = {"min_bytes": FETCH_BYTES_MIN, "bytes_max": FETCH_BYTES_MAX, "wait_s": FETCH_WAIT_S}
    async with connect(leader_port) as channel:
        while len(records) < count:
            answer = await call(channel, "consumer_fetch", offset=len(records), **wanted)
            for record in decode_all(answer.body):
                if record.offset != len(records) or record.offset >= answer.fields["high_watermark"]:
                    raise WrongRecord(f"record {record.offset}, expected {len(records)}: {answer.fields}")
                records.append(record)
    return records
