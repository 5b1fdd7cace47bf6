"""Messages between the log's processes: a JSON header and a binary body, over TCP on loopback.

    length of header (u32) | length of body (u32) | header (JSON) | body

A request's header has "id" and "call"; its answer has the same "id". Answers may come in any order, so that one
connection carries many requests at once.
"""

import asyncio
import contextlib
import json
import struct
from typing import Any, Final, NamedTuple, Self

from examples.replicated_log.log_records import PAYLOAD_BYTES_MAX

LOOPBACK: Final = "127.0.0.1"
HEADER_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 1024 * 1024
_LENGTHS: Final = struct.Struct(">II")


class WireError(Exception):
    """The other side sent something that this protocol does not allow."""


class Message(NamedTuple):
    header: dict[str, Any]
    body: bytes = b""


def encode_message(message: Message) -> bytes:
    header = json.dumps(message.header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(header), len(message.body)) + header + message.body


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side has closed. WireError: it is not one, or too big."""
    try:
        header_length, body_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if header_length > HEADER_BYTES_MAX or body_length > BODY_BYTES_MAX:
            raise WireError(f"message of {header_length} + {body_length} bytes is too big")
        header = json.loads(await reader.readexactly(header_length))
        body = await reader.readexactly(body_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        raise WireError(f"message header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise WireError(f"message header is no JSON object: {header!r}")
    return Message(header, body)


class Connection:
    """The asking side: `await call(...)` as often as you like at the same time; each gets exactly its own answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._fault: Exception | None = None
        self._receiver = asyncio.create_task(self._receive(), name="connection receiver")

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connects to a process on this machine. Raises OSError if nothing listens there."""
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    async def call(self, name: str, body: bytes = b"", **fields: object) -> Message:
        """Sends a request and returns its answer. ConnectionError: the connection ended first."""
        return await self.send(name, body, **fields)

    def send(self, name: str, body: bytes = b"", **fields: object) -> asyncio.Future[Message]:
        """Sends a request now, in order with those before it; the future gets its answer."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            answer.set_exception(self._fault)
            return answer
        self._last_id += 1
        self._waiting[self._last_id] = answer
        self._writer.write(encode_message(Message({"id": self._last_id, "call": name, **fields}, body)))
        return answer

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        """Closes the connection; requests without an answer fail."""
        self._receiver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._receiver
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _receive(self) -> None:
        fault: Exception = ConnectionError("the connection has ended")
        try:
            while (message := await read_message(self._reader)) is not None:
                request_id = message.header.get("id")
                answer = self._waiting.pop(request_id, None) if isinstance(request_id, int) else None
                if answer is None:
                    fault = WireError(f"answer {request_id!r} belongs to no request, or is its second")
                    break
                if not answer.done():
                    answer.set_result(message)
        except WireError as error:
            fault = error
        finally:
            self._fault = fault
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(fault)
            self._waiting.clear()
