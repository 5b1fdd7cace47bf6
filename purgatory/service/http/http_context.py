"""The context of a call over HTTP: the parts of gRPC's context that methods and checks use."""

import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from google.protobuf.message import Message
from starlette.types import Scope

from purgatory.service.http.http_connection import CONNECTION
from purgatory.service.transport.peer import PeerCertificate, of_der

Write = Callable[[Message | bytes], Awaitable[None]]
"""Writes an answer, which may already be encoded."""

HEADERS: Final = ("authorization", "traceparent", "tracestate")
"""The headers that calls use."""
HEADER_COPIES: Final = 2
"""The Connect package keeps a copy of each header as text."""
HEADER_NAMES: Final = frozenset(name.encode() for name in HEADERS)


async def write_nothing(_answer: Message | bytes) -> None:
    raise AssertionError("a unary call writes nothing")


class HttpContext:
    """The context of one request. `deadline_s` is on the monotonic clock; None: no deadline."""

    __slots__ = ("_at_end", "_deadline_s", "_scope", "write")

    def __init__(self, scope: Scope, write: Write = write_nothing, deadline_s: float | None = None) -> None:
        self._scope: Final = scope
        self._deadline_s: Final = deadline_s
        self._at_end: Final[list[Callable[[object], object]]] = []
        self.write: Final = write

    def peer(self) -> str:
        """The peer in gRPC's notation, without the port: over HTTP/1.1 each call has a connection of its own. Without
        principals, all calls from one address belong to one caller.
        """
        client = self._scope["client"]
        if client is None:
            return "unknown"
        host = client[0]
        # Escaped as gRPC does it, because the access checks recognise loopback by this text.
        return f"ipv6:%5B{host}%5D:http" if ":" in host else f"ipv4:{host}:http"

    def add_done_callback(self, callback: Callable[[object], object]) -> None:
        self._at_end.append(callback)

    def done(self) -> None:
        """Call the done callbacks, each once: the answer has been sent, or will not be."""
        # Popped one by one: this may be called again by a later error, and each callback gives memory back once.
        while self._at_end:
            self._at_end.pop()(self)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        found = ((name, header_of(self._scope, name.encode())) for name in HEADERS)
        return tuple((name, value) for name, value in found if value is not None)

    def auth_context(self) -> Mapping[str, tuple[bytes, ...]]:
        der = _certificate(self._scope)
        return {} if der is None else {"x509_pem_cert": (ssl.DER_cert_to_PEM_cert(der).encode(),)}

    def time_remaining(self) -> float | None:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())


def header_of(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name (in lower case); None if it is missing."""
    return next(headers_of(scope, name), None)


def headers_of(scope: Scope, name: bytes) -> Iterator[str]:
    """All headers of this name (in lower case)."""
    return (value.decode("latin-1") for key, value in scope["headers"] if key == name)


def drop_head(scope: Scope, kept: Callable[[bytes], bool] = lambda _name: False) -> int:
    """Drop the headers of a request that neither calls use nor `kept` names, and its address: a client chooses how long
    they are, and how long its call waits. Returns the memory of what is left, in bytes.
    """
    scope["headers"] = [header for header in scope["headers"] if header[0] in HEADER_NAMES or kept(header[0])]
    scope["query_string"] = scope["raw_path"] = b""
    return HEADER_COPIES * sum(len(name) + len(value) for name, value in scope["headers"])


def certificate_of(scope: Scope) -> PeerCertificate | None:
    """Return the client's certificate, verified by the handshake; None if the client presented none."""
    der = _certificate(scope)
    return None if der is None else of_der(der)


def _certificate(scope: Scope) -> bytes | None:
    connection = scope["state"][CONNECTION].transport.get_extra_info("ssl_object")
    der: bytes | None = None if connection is None else connection.getpeercert(binary_form=True)
    return der
