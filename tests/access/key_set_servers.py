"""HTTPS servers of key sets that answer correctly, with a redirect, endlessly, or a byte at a time."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from examples.secure_demo.authority import Authority

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


def trusted_context(folder: Path) -> tuple[ssl.SSLContext, dict[str, str]]:
    """A server's context for 127.0.0.1, and the environment in which its authority is trusted."""
    authority = Authority("An authority for key sets")
    files = authority.issue("issuer", hosts=["127.0.0.1"]).write(folder, "issuer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    trusted = folder / "trusted.crt"
    trusted.write_bytes(authority.certificate_pem)
    return context, {"SSL_CERT_FILE": str(trusted)}


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


@contextlib.contextmanager
def serving_keys_in_a_thread(context: ssl.SSLContext | None, serve: Serve) -> Iterator[int]:
    """Like `serving_keys`, for tests that are not asynchronous."""
    ports: list[int] = []
    started, ended = threading.Event(), threading.Event()

    async def run() -> None:
        async with serving_keys(context, serve) as port:
            ports.append(port)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield ports[0]
    finally:
        ended.set()
        thread.join(30)
