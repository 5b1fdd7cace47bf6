"""HTTP exchanges with other servers: receivers of webhooks, and issuers of JSON web tokens.

The same rule applies to each of them (docs/security.md, "Servers that the daemon calls"): one deadline for the whole
exchange, a limit on the bytes of the answer, verified certificates, no redirects, and no step that blocks the event
loop. Answers of these servers are as untrusted as requests of callers.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import httpcore

from purgatory.service.fair_queue import Turn, next_loop_turn
from purgatory.service.transport.linear_h11 import make_h11_linear
from purgatory.threads import on_daemon_thread

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host, the preferred one first. Raises OSError."""

ChooseAddresses = Callable[[str, Sequence[str]], Sequence[str]]
"""Returns those addresses of a host that may be connected to, at least one, or raises an error of its own."""

READ_BYTES: Final = 2_048
"""The HTTP parser handles what one read returned without yielding: 80 interim responses (`100 Continue`) of 25 bytes
take it half a millisecond, those of the 64 KiB that the library asks for 16 ms.
"""
KEPT_S: Final = 5.0
"""How long an unused connection is kept."""

Headers = list[tuple[bytes, bytes]]

make_h11_linear()


class NoAnswer(Exception):
    """No valid answer arrived in time. The message says why."""


class Answer(NamedTuple):
    """The final response."""

    status: int
    headers: Headers
    body: bytes
    is_whole: bool
    """False: the body was longer than the limit; `body` is its beginning."""


class AnswerTooLong(httpcore.ReadError):
    """The answer has more bytes than allowed: headers, interim responses and body together."""


async def system_addresses(host: str, port: int) -> list[str]:
    """`Resolve` by the system."""

    def look_up() -> list[str]:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"not a host name: {error}") from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))

    return await on_daemon_thread(look_up)


class Outbound:
    """A client for exchanges that obey the rule. Connections are kept for a while; `close` it at the end.

    `choose` decides per connection which addresses of a host are used. `proxy_url` is an HTTP proxy. The bytes of each
    read are parsed in a separate `turn`.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        answer_bytes_max: int,
        ssl_context: ssl.SSLContext,
        resolve: Resolve = system_addresses,
        choose: ChooseAddresses = lambda _host, addresses: addresses,
        connections_max: int = 1,
        proxy_url: str | None = None,
        turn: Turn = next_loop_turn,
    ) -> None:
        self._timeout_s: Final = timeout_s
        self._pool: Final = httpcore.AsyncConnectionPool(
            ssl_context,
            max_connections=connections_max,
            keepalive_expiry=KEPT_S,
            network_backend=_Network(resolve, choose, answer_bytes_max, turn),
            proxy=None if proxy_url is None else _proxy(proxy_url),
        )

    async def exchange(self, method: str, url: str, headers: Headers, body: bytes = b"") -> Answer:
        """Send a request and read the answer.

        Raises:
            NoAnswer: The server is unreachable, too slow, or broke the protocol.
        """
        content, is_whole = bytearray(), True
        try:
            async with (
                # Around everything, from the look-up of the name on. The timeouts of the library hold for one read
                # each, and a server that sends a byte at a time never exceeds them.
                asyncio.timeout(self._timeout_s),
                self._pool.stream(method, url, headers=headers, content=body or None) as response,
            ):
                try:
                    async for part in response.aiter_stream():
                        content += part
                except AnswerTooLong:  # the status is known, and counts
                    is_whole = False
                return Answer(response.status, response.headers, bytes(content), is_whole)
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, OSError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from None

    async def close(self) -> None:
        await self._pool.aclose()


def _proxy(url: str) -> httpcore.Proxy:
    """Parse a variable such as https_proxy: the scheme is optional, and it may contain a user and password."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    # Without user and password, which are passed separately and must not be part of the address.
    return httpcore.Proxy(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", auth)


class _Network(httpcore.AnyIOBackend):
    """Resolves a host once per connection and connects to one of the addresses chosen from the result, so a name that
    changes its meaning between check and connection gains nothing. TLS still verifies the certificate for the name.
    """

    def __init__(self, resolve: Resolve, choose: ChooseAddresses, answer_bytes_max: int, turn: Turn) -> None:
        self._resolve: Final = resolve
        self._choose: Final = choose
        self._answer_bytes_max: Final = answer_bytes_max
        self._turn: Final = turn

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as the library calls it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address: {error.strerror or error}") from error
        failed: httpcore.ConnectError | None = None
        for address in self._choose(host, addresses):
            try:
                stream = await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failed = error
            else:
                return _BoundedStream(stream, self._answer_bytes_max, self._turn)
        raise failed or httpcore.ConnectError(f"{host} has no address")


class _BoundedStream(httpcore.AsyncNetworkStream):
    """A connection that reads little at a time and at most `bytes_max` per answer.

    An answer is everything read between two writes: HTTP/1.1 without pipelining.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream, bytes_max: int, turn: Turn) -> None:
        self._stream: Final = stream
        self._bytes_max: Final = bytes_max
        self._turn: Final = turn
        self._read_bytes = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        # Before the read, so an answer that ends exactly at the limit is complete.
        if self._read_bytes >= self._bytes_max:
            raise AnswerTooLong(f"the answer has more than {self._bytes_max} bytes")
        data = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
        self._read_bytes += len(data)
        await self._turn()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        self._read_bytes = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        # A new object of the library, so it has to be limited again.
        return _BoundedStream(stream, self._bytes_max, self._turn)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as the library has it
        return self._stream.get_extra_info(info)
