"""Malformed bytes at the two ports, as sent by a scanner, a broken proxy or a cut connection."""

import asyncio
import contextlib
import random
from typing import Final

import hpack

from tests.abuse.open_loop import frame
from tests.abuse.requests.caller import Tally

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"
METHODS: Final = ("Wait", "Session", "Register", "Advance", "AdvanceStream", "ListOperations", "NoSuchMethod")
ANSWER_S: Final = 0.05
"""Timeout for a response: most of these bytes get none."""


def headers(path: str, content_type: str = "application/grpc", **extra: str) -> bytes:
    """A header block that does not use the connection's header table."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    fields |= {"content-type": content_type, **{name.replace("_", "-"): value for name, value in extra.items()}}
    return bytes(hpack.Encoder().encode([(*field, True) for field in fields.items()], huffman=False))


def grpc_garbage(rng: random.Random) -> bytes:
    """Bytes for the gRPC port, from random bytes to almost valid calls."""
    path = f"/purgatory.v1.PurgatoryService/{rng.choice(METHODS)}"
    body = rng.randbytes(rng.choice((0, 1, 4, 5, 40, 300)))
    opening = PREFACE + SETTINGS + frame(1, 4, 1, headers(path))
    frames = [
        frame(rng.randrange(12), rng.randrange(256), rng.choice((0, 1, 2, 3, 2**31 - 1)), rng.randbytes(8))
        for _ in range(5)
    ]
    odd = headers(path, rng.choice(("text/plain", "application/grpc+json", "")), grpc_timeout="99999999999999H")
    return rng.choice(
        (
            rng.randbytes(rng.choice((1, 24, 500, 20_000))),
            PREFACE[: rng.randrange(1, len(PREFACE))],
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            PREFACE + rng.randbytes(rng.choice((1, 9, 100, 5_000))),
            PREFACE + SETTINGS + b"".join(frames),
            opening + frame(0, 1, 1, body, length=rng.choice((2**24 - 1, 16_384, len(body) + 1))),
            opening + frame(0, 1, 1, bytes((rng.randrange(256),)) + rng.randbytes(4) + body),
            opening + frame(0, 1, 1, b"\0" + len(body).to_bytes(4, "big") + body),
            PREFACE + SETTINGS + frame(1, 5, 1, odd) + frame(3, 0, 1, b"\0\0\0\x08"),
            opening[: rng.randrange(len(PREFACE), len(opening))],
        )
    )


def http_garbage(rng: random.Random) -> bytes:
    """Bytes for the HTTP port: odd requests, and bytes that are not requests."""
    path = rng.choice(
        ("/", "/metrics", "/healthz", "/readyz", "/no/such", "/%00", "/../../etc/passwd", "*", "//", "/?" + "q" * 9_000)
    )
    verb = rng.choice(("GET", "GET", "HEAD", "POST", "OPTIONS", "TRACE", "PRI", "G\0T", "get", "X" * 300))
    accept = rng.choice(
        ("", "*/*", "application/openmetrics-text", ";;;=", "\xff", "text/plain;version=" + "9" * 50, "a/b;q=x")
    )
    head = f"{verb} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n"
    odd = (
        rng.randbytes(rng.choice((1, 30, 3_000))).decode("latin-1"),
        head[: rng.randrange(1, len(head))],
        head + "Content-Length: -1\r\n\r\n",
        head + "Transfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n",
        head + "X: " + "y" * 20_000 + "\r\n\r\n",
        *[head + "\r\n"] * 2,
    )
    return rng.choice(odd).encode("latin-1")


async def send_grpc_garbage(address: str, rng: random.Random, tally: Tally, times: int) -> None:
    """Send bytes to the gRPC port, each time on a new connection."""
    for _ in range(times):
        answer = await _send(address, grpc_garbage(rng))
        tally.count("bytes at the gRPC port", "answered" if answer else "dropped")


async def send_http_garbage(address: str, rng: random.Random, tally: Tally, times: int) -> None:
    """Send bytes to the HTTP port. A status of 500 or above is a finding, except 501 and 505."""
    for _ in range(times):
        data = http_garbage(rng)
        answer = await _send(address, data)
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else "dropped"
        if status >= "500" and status not in {"501", "505", "dropped"}:
            tally.find(f"HTTP {status} for {data[:200]!r}")
        tally.count("bytes at the HTTP port", status)


async def _send(address: str, data: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(1_000), ANSWER_S)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer
