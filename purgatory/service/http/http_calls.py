"""Calls over HTTP: the same methods as over gRPC, with the same checks, in the same queue.

A call is admitted before its body is read, and its request is decoded in its turn: see `rpc.handlers`. `HttpContext`
has the parts of gRPC's context that methods and checks use.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar, cast

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.service.access.account import Account
from purgatory.service.errors import RpcError, unavailable
from purgatory.service.http.connect_codecs import FairThread
from purgatory.service.http.connect_errors import error_response, wrong_method
from purgatory.service.http.http_connection import CONNECTION
from purgatory.service.rpc.call import Call, Context, Identify
from purgatory.service.rpc.call_gate import Admission, AdmissionRules, CallGate
from purgatory.service.rpc.handlers import SERVICE, Method, not_served, work_of
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


SHUTTING_DOWN: Final = "the daemon is shutting down"
CUT_OFF: Final = "the daemon is shutting down; this call may have been processed"
"""Without advice to repeat it, as over gRPC."""
BOTH_WAYS: Final = "is a stream in both directions, which HTTP/1.1 cannot carry: use gRPC"


@dataclass(frozen=True, slots=True)
class HttpMethod:
    """A method of the service, with the checks for its calls."""

    descriptor: MethodDescriptor
    serve: Callable[[Any, Call], Awaitable[Message | None]]
    """Answers a request or, for a server stream, writes its answers."""
    rules: AdmissionRules
    request_type: type[Message]
    answer_type: type[Message]

    @property
    def is_unary(self) -> bool:
        return self.rules.is_unary

    def as_stream(self, serve: Callable[[Any, Call], Awaitable[Message | None]] | None = None) -> "HttpMethod":
        """Return the method as one whose answer is repeated without end, served by `serve` if given."""
        return replace(self, serve=serve or self.serve, rules=replace(self.rules, is_unary=False))


class HttpMethods:
    """All methods of the service, by name. `identify`: as for gRPC."""

    def __init__(self, methods: Mapping[str, Method], gate: CallGate, identify: Identify) -> None:
        self.gate: Final = gate
        self.thread: Final = FairThread()
        self.is_ending = False
        """Set once no further calls are accepted."""
        self.by_name: Final = {
            method.name: HttpMethod(
                method,
                not_served(method.name, BOTH_WAYS) if method.client_streaming else methods[method.name],
                AdmissionRules(
                    identify(method.name),
                    work_of(method),
                    gate.counts.of(method),
                    is_unary=not (method.client_streaming or method.server_streaming),
                ),
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
            )
            for method in SERVICE.methods
        }


class HttpCall:
    """One call: `enter`, then `run`, and in any case `leave`. Belongs to the request's own task."""

    __slots__ = ("_admission", "_methods", "method")

    def __init__(self, methods: HttpMethods, method: HttpMethod) -> None:
        self.method: Final = method
        self._methods: Final = methods
        self._admission: Admission | None = None

    async def enter(self, context: HttpContext) -> None:
        """Count the call. Raises `RpcError` if a limit refuses it."""
        # Only here: calls that have entered are answered during the shutdown.
        if self._methods.is_ending:
            refused = unavailable(SHUTTING_DOWN)
            self.method.rules.counts.add_ended(refused.code)
            raise refused
        self._admission = Admission(self._methods.gate, self.method.rules, cast("Context", context))

    async def run(self, decode: Callable[[], Awaitable[Message | None]]) -> Message | None:
        """Serve the request. Returns the answer, or None if it was written as a stream. Raises `RpcError`."""
        admission, has_begun = self._entered(), False
        with admission as call:
            try:
                # Again, because the body may have arrived long after `enter`.
                call.recheck()
                # The turn comes before the body is decoded: JSON takes fifty times as long as protobuf.
                await admission.turn()
                request = await decode()
                has_begun = True
                return await self.method.serve(request, call)
            except asyncio.CancelledError:
                # Not a stream, which its client continues. The task ends normally, because the answer has to be
                # written.
                if not (self._methods.is_ending and self.method.is_unary):
                    raise
                cut_off = RpcError(code_pb2.UNAVAILABLE, CUT_OFF)
                raise (cut_off if has_begun else unavailable(SHUTTING_DOWN)) from None

    async def off_loop(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any type
        """Run a piece of work in the thread, in turn with other callers."""
        return await self._methods.thread.run("" if self._admission is None else self._admission.caller.key, work)

    def check(self) -> Account:
        """Check access for a call whose answer may be shared with other calls, and return its account. Raises
        `RpcError`.
        """
        call = self._entered().call
        call.recheck()
        return call.account

    def leave(self) -> None:
        # Harmless if called twice or before `enter`: the interceptor calls it after any error.
        if self._admission is not None:
            self._admission.leave()
            self._admission = None

    def _entered(self) -> Admission:
        assert self._admission is not None, "a call is served that did not enter"
        return self._admission


@asynccontextmanager
async def entered(methods: HttpMethods, method: HttpMethod, context: HttpContext) -> AsyncGenerator[HttpCall]:
    """A call that has entered, until the block ends. Raises `RpcError` if a limit refuses it."""
    call = HttpCall(methods, method)
    try:
        await call.enter(context)
        yield call
    finally:
        context.done()
        call.leave()


def already_decoded(request: Message | None) -> Callable[[], Awaitable[Message | None]]:
    """For `HttpCall.run`: a request that is not in a body."""

    async def decode() -> Message | None:
        return request

    return decode


def page(methods: HttpMethods, method: str, answer: Callable[[Scope, Call], Awaitable[Response]]) -> ASGIApp:
    """A page that is not cached. Requests count as calls of a method of the service; `answer` may raise `RpcError`."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            response: Response = wrong_method(scope["path"], scope["method"], {"Allow": "GET, HEAD"})
        else:
            served = replace(methods.by_name[method], serve=cast("Any", lambda _, call: answer(scope, call)))
            try:
                async with entered(methods, served, HttpContext(scope)) as call:
                    response = cast("Response", await call.run(already_decoded(None)))
            except RpcError as refused:
                response = error_response(refused)
            response.headers["Cache-Control"] = "no-store"
        await response(scope, receive, send)

    return application


Answer = TypeVar("Answer")


class End:
    """Marks the end, after the last answer."""


class WrittenAnswers(Generic[Answer]):
    """Holds one answer: `write` waits until the last one has been taken, so a client that does not read delays only its
    own call.
    """

    def __init__(self) -> None:
        self._queue: Final[asyncio.Queue[Answer | End]] = asyncio.Queue(1)
        self._error: Exception | None = None

    async def write(self, answer: Answer) -> None:
        await self._queue.put(answer)

    async def of(self, method: Callable[[], Awaitable[object]]) -> AsyncGenerator[Answer]:
        """Yield the answers of a method until it ends; then raise any error that it raised. Closing early cancels the
        method.
        """
        task = asyncio.create_task(self._run(method), name="answers over HTTP")
        try:
            while not isinstance(answer := await self._queue.get(), End):
                yield answer
            if self._error is not None:
                raise self._error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._error = None  # it refers to this frame: a cycle

    async def _run(self, method: Callable[[], Awaitable[object]]) -> None:
        try:
            await method()
        except Exception as error:  # noqa: BLE001 - raised again in the iterator
            self._error = error
        # After an error too, or the iterator would wait for ever.
        await self._queue.put(End())
