"""Attacks on the HTTP server that take processor time, each bounded in count and time.

`suite.test_http` has those that take memory or connections.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Final

from tests.abuse.attacks import Attack, Target
from tests.abuse.result import Tally
from tests.http.raw_http import RawConnection, chunked, request

MEGABYTE: Final = 1024 * 1024
SERVICE: Final = "/purgatory.v1.PurgatoryService"


def post(method: str, kind: str, body: bytes, token: str, **headers: str) -> bytes:
    """A call with POST. If `kind` is grpc-web or connect+, it has an envelope whose flag marks it as compressed."""
    if kind.startswith(("grpc-web", "connect+")):
        body = struct.pack(">BI", 1, len(body)) + body
    given = {"content-type": f"application/{kind}", "authorization": f"Bearer {token}", **headers}
    return request(
        "POST", f"{SERVICE}/{method}", {name.replace("_", "-"): value for name, value in given.items()}, body
    )


def call_all(http: str, requests: Iterable[bytes], deadline_s: float) -> Tally:
    """Send requests one after the other, each on a new connection, and read the responses."""
    tally: Tally = Counter()
    for sent in requests:
        if time.monotonic() > deadline_s:
            break
        try:
            with RawConnection(http) as connection:
                connection.send(sent)
                tally[str(connection.answer("POST").status)] += 1
        except (OSError, ValueError):  # closed without a response
            tally["closed"] += 1
    return tally


async def callers(http: str, seconds: float, count: int, requests: Callable[[int], Iterator[bytes]]) -> Tally:
    """Run `count` callers at once, each in a thread, with the `requests` of its number."""
    deadline_s = time.monotonic() + seconds
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(count))
    works = [asyncio.to_thread(call_all, http, requests(number), deadline_s) for number in range(count)]
    return sum(await asyncio.gather(*works), Counter())


async def gzip_members(target: Target) -> Tally:
    """Four callers send 4 MB of empty gzip members, which take quadratic time if their outputs are concatenated."""
    members = gzip.compress(b"") * 199_000
    kinds = cycle([("json", "content_encoding"), ("grpc-web+proto", "grpc_encoding"),
                   ("connect+json", "connect_content_encoding")])  # fmt: skip
    bodies = [
        post(
            "StreamResults" if kind == "connect+json" else "Register", kind, members, target.token, **{encoding: "gzip"}
        )
        for (kind, encoding), _ in zip(kinds, range(3), strict=False)
    ]
    return await callers(
        target.http, target.seconds, 4, lambda number: cycle(bodies[number % 3 :] + bodies[: number % 3])
    )


async def gzip_bombs(target: Target) -> Tally:
    """24 callers send data that gzip compresses to a thousandth of its size, as protobuf, as JSON, and in a URL."""
    bomb = gzip.compress(b"{" + b" " * (4 * MEGABYTE - 10) + b"}")
    address = gzip.compress(b"{" + b" " * (MEGABYTE - 10) + b"}")
    quoted = "".join(f"%{byte:02x}" for byte in address)
    bombs = [post("Register", kind, bomb, target.token, content_encoding="gzip") for kind in ("json", "proto")]
    bombs.append(request("GET", f"{SERVICE}/GetStatus?encoding=json&compression=gzip&message={quoted}"))
    return await callers(target.http, target.seconds, 24, lambda _number: cycle(bombs))


async def large_json(target: Target) -> Tally:
    """24 callers send the largest batches allowed in JSON, and batches four times as large."""
    operation = {"operationId": "1", "timeoutMs": 1, "signal": {"keys": [{"key": "attack"}]}}
    text = json.dumps({"sessionId": "json", "batch": {"rows": {"operations": [operation] * 9_500}}}).encode()
    calls = [
        post("Register", "json", text, target.token),
        post("Register", "json", text + b" " * (3 * MEGABYTE), target.token),
    ]
    return await callers(target.http, target.seconds, 24, lambda _number: cycle(calls))


async def tiny_chunks(target: Target) -> Tally:
    """Four callers send bodies in chunks of one byte."""
    call = post("GetStatus", "json", b"", target.token, transfer_encoding="chunked") + chunked(
        b"{" + b" " * 300_000 + b"}", 1
    )
    return await callers(target.http, target.seconds, 4, lambda _number: cycle([call]))


ATTACKS: Final[dict[str, Attack]] = {
    "http-gzip-members": gzip_members,
    "http-gzip-bombs": gzip_bombs,
    "http-large-json": large_json,
    "http-tiny-chunks": tiny_chunks,
}
