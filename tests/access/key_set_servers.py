"""HTTPS servers of key sets that answer correctly, with a redirect, endlessly, or a byte at a time."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

Serve = Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Answers one request, whose head has been read."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""An endless answer is ended after this many bytes."""


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


def says(answer: bytes) -> Serve:
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return serve


def repeats(first: bytes, part: bytes) -> Serve:
    """Send an endless answer as fast as it is read."""

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        for _ in range(BYTES_MAX // len(part)):
            writer.write(part)
            await writer.drain()

    return serve


async def drips(writer: asyncio.StreamWriter) -> None:
    """Send a byte every 50 ms, so that no single read takes long."""
    for byte in response("200 OK", b" " * 1_000):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def serving_keys(context: ssl.SSLContext | None, serve: Serve) -> AsyncIterator[int]:
    """Serve on a free port of loopback, and yield it. Without a context: plain HTTP."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
