"""Attacks on the HTTP server, each bounded in count and time."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Final

from tests.abuse.attacks import Attack, Target
from tests.abuse.result import Tally
from tests.http.raw_http import RawConnection, chunked, request

MEGABYTE: Final = 1024 * 1024
SERVICE: Final = "/purgatory.v1.PurgatoryService"
HEALTHZ: Final = request("GET", "/healthz")


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


@contextmanager
def many_connections(http: str, count: int) -> Iterator[list[socket.socket]]:
    """Open as many non-blocking connections as possible, up to `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * count)), hard))
    with ExitStack() as connections:
        held = []
        for _ in range(count):
            connection = connections.enter_context(RawConnection(http)).socket
            connection.setblocking(False)
            held.append(connection)
        yield held


def send_all(connections: list[socket.socket], data: bytes, bytes_max: int, deadline_s: float) -> int:
    """Send the data repeatedly on all connections, as long as they accept it; return the number of bytes."""
    left, taken = dict.fromkeys(connections, bytes_max), 0
    while left and time.monotonic() < deadline_s:
        poll = select.poll()
        files = {connection.fileno(): connection for connection in left}
        for number in files:
            poll.register(number, select.POLLOUT)
        ready = poll.poll(200)
        for number, _ in ready:
            connection = files[number]
            try:
                sent = connection.send(data[: left[connection]])
            except BlockingIOError:
                continue
            except OSError:
                sent = left[connection]
            taken += sent
            left[connection] -= sent
            if not left[connection]:
                del left[connection]
    return taken


async def pipelined_unread(target: Target) -> Tally:
    """Ten connections, each with 16.8 MB of probe requests whose responses are never read; then all close."""

    def attack() -> int:
        with many_connections(target.http, 10) as held:
            deadline_s = time.monotonic() + target.seconds
            taken = send_all(held, HEALTHZ * 10_000, 17_000_000, deadline_s)
            time.sleep(max(0.0, deadline_s - time.monotonic()))
            return taken

    return Counter(taken_mb=await asyncio.to_thread(attack) // MEGABYTE)


async def unread_pages(target: Target) -> Tally:
    """2,000 connections request the page and its scripts, and read nothing."""

    def attack() -> int:
        with many_connections(target.http, 2_000) as held:
            deadline_s = time.monotonic() + target.seconds
            page = request("GET", "/") + request("GET", "/page/static/page.js") + request("GET", "/metrics")
            taken = send_all(held, page * 50, 50 * len(page), deadline_s)
            time.sleep(max(0.0, deadline_s - time.monotonic()))
            return taken

    return Counter(taken_mb=await asyncio.to_thread(attack) // MEGABYTE)


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


async def unfinished_bodies(target: Target) -> Tally:
    """255 bodies of 4 MB; the last bytes of each are never sent."""
    length = 4 * MEGABYTE - 2_048
    head = post("Register", "proto", b"", target.token, content_length=str(length + 1_024))

    def attack() -> int:
        with many_connections(target.http, 255) as held:
            deadline_s = time.monotonic() + target.seconds
            data = b"x" * 65_536
            taken = sum(connection.send(head) for connection in held) + send_all(held, data, length, deadline_s)
            time.sleep(max(0.0, deadline_s - time.monotonic()))
            return taken

    return Counter(taken_mb=await asyncio.to_thread(attack) // MEGABYTE)


async def tiny_chunks(target: Target) -> Tally:
    """Four callers send bodies in chunks of one byte."""
    call = post("GetStatus", "json", b"", target.token, transfer_encoding="chunked") + chunked(
        b"{" + b" " * 300_000 + b"}", 1
    )
    return await callers(target.http, target.seconds, 4, lambda _number: cycle([call]))


async def places(target: Target) -> Tally:
    """1,500 connections request a probe and stay open, while probes on other connections are counted."""
    tally: Tally = Counter()

    def attack() -> None:
        deadline_s = time.monotonic() + target.seconds
        with many_connections(target.http, 1_500) as held:
            send_all(held, HEALTHZ, len(HEALTHZ), deadline_s)
            tally.update(call_all(target.http, cycle([request("GET", "/readyz")]), deadline_s))

    await asyncio.to_thread(attack)
    return tally


ATTACKS: Final[dict[str, Attack]] = {
    "http-pipelined-unread": pipelined_unread,
    "http-unread-pages": unread_pages,
    "http-gzip-members": gzip_members,
    "http-gzip-bombs": gzip_bombs,
    "http-large-json": large_json,
    "http-unfinished-bodies": unfinished_bodies,
    "http-tiny-chunks": tiny_chunks,
    "http-places": places,
}
