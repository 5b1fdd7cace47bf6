"""Loads a Redis used as a purgatory (bench/peers/redis.py): the same lanes, and many waits with one deadline."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bench.drivers.messages import TIMEOUT_MS, new_topic
from bench.measure.worker import Numbers, measured, on_uvloop, serve
from bench.peers.redis import RedisConnection, command

EXPIRED_PER_CALL: Final = b"2000"


class Results:
    """Counts published results and lets callers wait for a number of them."""

    def __init__(self) -> None:
        self._ended = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    async def listen(self, connection: RedisConnection) -> None:
        while True:
            self._ended += len(await connection.messages())
            if self._ended >= self._wanted:
                self._reached.set()

    async def at_least(self, count: int) -> None:
        """Return when at least `count` results have arrived."""
        self._wanted = count
        self._reached.clear()
        if self._ended < count:
            await self._reached.wait()


def register(script: bytes, key: bytes, ids: range, offsets: range, deadline_ms: bytes, together: int) -> bytes:
    """Calls of the register script, with `together` registrations each."""
    parts = []
    for first in range(0, len(ids), together):
        pairs = zip(ids[first : first + together], offsets[first : first + together], strict=True)
        words = [word for one, offset in pairs for word in (b"%d" % one, b"%d" % offset, deadline_ms)]
        parts.append(command(b"EVALSHA", script, b"1", key, *words))
    return b"".join(parts)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[RedisConnection, Results]]:
    """A connection with the scripts loaded, and the results that are published while it is open."""
    async with RedisConnection.open(address) as redis, RedisConnection.open(address) as listener:
        await redis.load_scripts()
        await listener.subscribe()
        results = Results()
        listening = asyncio.create_task(results.listen(listener))
        yield redis, results
        listening.cancel()


@on_uvloop
async def columns(address: str, batch: int, lanes: int, together: int, seconds: float) -> Numbers:
    """Waits in batches of `batch`, each batch on the next key; `together` waits per script call, calls of a batch
    pipelined.
    """
    async with connected(address) as (redis, results):
        topic = new_topic()
        keys = [f"{topic}-{lane}".encode() for lane in range(lanes)]
        advance = redis.scripts["advance"]
        calls = -(-batch // together)
        deadline_ms = b"%d" % (int(time.time() * 1_000) + TIMEOUT_MS)
        next_id, offset, ended, taken = 1, 0, 0, 0.0
        started = time.perf_counter()
        while taken < seconds:
            for key in keys:
                ids, offsets = range(next_id, next_id + batch), range(offset + 1, offset + batch + 1)
                next_id += batch
                await redis.ask(register(redis.scripts["register"], key, ids, offsets, deadline_ms, together), calls)
            offset += batch
            marks = [command(b"EVALSHA", advance, b"1", key, b"%d" % offset) for key in keys]
            await redis.ask(b"".join(marks), lanes)
            ended += batch * lanes
            await results.at_least(ended)
            taken = time.perf_counter() - started
        return measured(taken, ended)


@on_uvloop
async def herd(address: str, count: int) -> Numbers:
    """`count` waits with one deadline: the time from the deadline to the last result."""
    async with connected(address) as (redis, results):
        key = new_topic().encode()
        for first in range(1, count + 1, 500):
            numbers = range(first, min(first + 500, count + 1))
            await redis.ask(register(redis.scripts["register"], key, numbers, numbers, b"1000", len(numbers)), 1)
        expire = command(b"EVALSHA", redis.scripts["expire"], b"0", b"1000", EXPIRED_PER_CALL)
        started = time.perf_counter()
        while await redis.ask(expire, 1) != [b":0"]:
            pass
        await results.at_least(count)
        return measured(time.perf_counter() - started, count)


if __name__ == "__main__":
    serve({"columns": columns, "herd": herd})
