"""Redis as a purgatory: waiters in sorted sets by required offset and by deadline, moved by Lua, results by pub/sub.

Three scripts. `register` adds one waiter to the set of its key and the set of deadlines, or publishes its result at
once; `advance` raises a mark and publishes the waiters that it passes; `expire` publishes the waiters that are due.
Debian's redis-server runs on a free port of 127.0.0.1 without persistence, and is ended by its process id.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

from bench.measure.processes import ROOT, Process
from examples.free_ports import free_port

__all__ = ["CHANNEL", "RedisConnection", "RedisMissing", "RedisServer", "command"]

CHANNEL: Final = b"results"
START_ATTEMPTS: Final = 200

REGISTER: Final = b"""
local mark = tonumber(redis.call('GET', 'mark:' .. KEYS[1]) or '0')
for place = 1, #ARGV, 3 do
  if tonumber(ARGV[place + 1]) <= mark then
    redis.call('PUBLISH', 'results', ARGV[place])
  else
    redis.call('ZADD', 'waits:' .. KEYS[1], ARGV[place + 1], ARGV[place])
    redis.call('ZADD', 'deadlines', ARGV[place + 2], ARGV[place] .. '|' .. KEYS[1])
  end
end
return 1
"""
ADVANCE: Final = b"""
redis.call('SET', 'mark:' .. KEYS[1], ARGV[1])
local waits = 'waits:' .. KEYS[1]
local passed = redis.call('ZRANGEBYSCORE', waits, '-inf', ARGV[1])
for _, id in ipairs(passed) do
  redis.call('ZREM', 'deadlines', id .. '|' .. KEYS[1])
  redis.call('PUBLISH', 'results', id)
end
redis.call('ZREMRANGEBYSCORE', waits, '-inf', ARGV[1])
return #passed
"""
EXPIRE: Final = b"""
local due = redis.call('ZRANGEBYSCORE', 'deadlines', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, entry in ipairs(due) do
  local id, key = entry:match('^(.-)|(.*)$')
  redis.call('ZREM', 'waits:' .. key, id)
  redis.call('ZREM', 'deadlines', entry)
  redis.call('PUBLISH', 'results', id)
end
return #due
"""


class RedisMissing(Exception):
    """Redis is not available on this machine. The message is the line to show."""


class RedisServer(Process):
    """A Redis server for the benchmark. Raises RedisMissing if it is not installed and cannot be."""

    def __init__(self) -> None:
        self.port: Final = free_port()
        super().__init__(
            [
                program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                "--loglevel", "warning", "--client-output-buffer-limit", "pubsub 0 0 0",
            ],
            wants_input=False,
        )  # fmt: skip

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


def program() -> str:
    """The path of redis-server, which is installed with apt-get if permitted. Raises RedisMissing."""
    found = shutil.which("redis-server")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command_line = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "redis-server"]
        subprocess.run(command_line, cwd=ROOT, capture_output=True, check=False)
        found = shutil.which("redis-server")
    if found is None:
        raise RedisMissing("redis is skipped: redis-server is not installed (Debian: apt-get install redis-server)")
    return found


def command(*words: bytes) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *[b"$%d\r\n%s\r\n" % (len(word), word) for word in words]])


class RedisConnection:
    """A pipelining connection: commands are sent together, and answers arrive in order as single lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self.scripts: Final[dict[str, bytes]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str) -> AsyncIterator[Self]:
        """Connect, retrying while the server starts. Raises ConnectionError."""
        host, _, port = address.rpartition(":")
        for _ in range(START_ATTEMPTS):
            try:
                reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                break
        else:
            raise ConnectionError(f"no Redis at {address}")
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def load_scripts(self) -> None:
        """Load the scripts; `scripts` then contains their digests."""
        for name, text in (("register", REGISTER), ("advance", ADVANCE), ("expire", EXPIRE)):
            self.scripts[name] = (await self.ask(command(b"SCRIPT", b"LOAD", text), 2))[1]

    async def ask(self, commands: bytes, answers: int) -> list[bytes]:
        """Send commands and return their `answers` lines. Raises RuntimeError for an error answer."""
        self._writer.write(commands)
        data = b""
        while data.count(b"\r\n") < answers:
            data += await self._read()
        lines = data.split(b"\r\n")[:-1]
        errors = [line for line in lines if line.startswith(b"-")]
        if errors:
            raise RuntimeError(errors[0].decode())
        return lines

    async def subscribe(self) -> None:
        """Subscribe to the results, which `messages` then returns."""
        await self.ask(command(b"SUBSCRIBE", CHANNEL), 6)

    async def messages(self) -> list[bytes]:
        """Wait for published results; returns at least one."""
        data = await self._read()
        while not is_whole(data):
            data += await self._read()
        return data.split(b"\r\n")[6::7]

    async def _read(self) -> bytes:
        data = await self._reader.read(1 << 20)
        if not data:
            raise ConnectionError("Redis has gone")
        return data


def is_whole(data: bytes) -> bool:
    """Whether the data ends at a message boundary: each message has seven lines."""
    return data.endswith(b"\r\n") and data.count(b"\r\n") % 7 == 0
