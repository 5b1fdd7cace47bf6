"""The service over the Connect protocol (and gRPC-Web), generated from its descriptors, for curl and browsers.

The package reads requests and writes answers. Access checks, turns and the methods themselves are the same as over
gRPC.
"""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from purgatory.service.errors import RpcError
from purgatory.service.http import http_calls
from purgatory.service.http.connect_codecs import Gzip, MessageCodec, Undecoded, ready
from purgatory.service.http.connect_errors import connect_error, retry_after, wrong_content_type, wrong_method
from purgatory.service.http.http_connection import CONNECTION
from purgatory.service.rpc.handlers import SERVICE

GRPC_WEB_TYPES: Final = "application/grpc-web+proto, application/grpc-web+json"
GRPC_HINT: Final = "; gRPC itself needs HTTP/2, so it is served on the gRPC port"
UNARY_TYPES: Final = "application/json, application/proto"
STREAM_TYPES: Final = "application/connect+json, application/connect+proto"


class ConnectRequest:
    """One request, from its arrival on. The package passes its own context, which lacks most of this."""

    __slots__ = ("_head_bytes", "_is_json", "answers", "call", "context", "scope")

    def __init__(
        self, methods: http_calls.HttpMethods, method: http_calls.HttpMethod, scope: Scope, head_bytes: int
    ) -> None:
        self.call: Final = http_calls.HttpCall(methods, method)
        self.scope: Final = scope
        self.answers: http_calls.WrittenAnswers[bytes] | None = None
        """The written answers of a stream; None for a unary call."""
        self._head_bytes: Final = head_bytes
        self._is_json = False
        self.context: http_calls.HttpContext | None = None

    async def run(self, request: Undecoded) -> Message | None:
        self._is_json = request.is_json

        async def decode() -> Message:
            try:
                return await request.message(self.call.off_loop)
            # The body is not needed while the call waits, which may take hours for `Wait`.
            finally:
                request.forget()
                self.scope["query_string"] = self.scope["raw_path"] = b""
                self.scope["state"][CONNECTION].body_decoded(self._head_bytes)

        return await self.call.run(decode)

    async def ready(self, answer: Message | bytes) -> bytes:
        return await ready(answer, self.call.method.answer_type, is_json=self._is_json, run=self.call.off_loop)

    async def write(self, answer: Message | bytes) -> None:
        assert self.answers is not None, "a unary call writes nothing"
        await self.answers.write(await self.ready(answer))


REQUEST: ContextVar[ConnectRequest] = ContextVar("request")
"""The request that the current task serves."""


class AdmissionInterceptor:
    """Admits a call before the body of its request is read (the first metadata interceptor of the package)."""

    async def on_start(self, ctx: RequestContext[Any, Any]) -> ConnectRequest:
        request = REQUEST.get()
        left_ms = ctx.timeout_ms
        deadline_s = None if left_ms is None else time.monotonic() + left_ms / 1_000
        with refusals_as_errors(ctx):
            try:
                request.context = http_calls.HttpContext(request.scope, request.write, deadline_s)
                await request.call.enter(request.context)
            except BaseException:
                request.call.leave()
                raise
        return request

    async def on_end(self, token: ConnectRequest, _ctx: RequestContext[Any, Any], error: Exception | None, /) -> None:
        token.call.leave()
        if isinstance(error, ConnectError):
            # The package keeps the error in a frame of its traceback, a cycle that would keep the body alive.
            error.__traceback__ = error.__cause__ = error.__context__ = None


class ConnectService(ConnectASGIApplication[http_calls.HttpMethods]):
    """The package's application for our service."""

    @property
    def path(self) -> str:
        return f"/{SERVICE.full_name}"


class ConnectCalls:
    """The calls over the Connect protocol: `applications` returns an application for each method, by path."""

    def __init__(self, methods: http_calls.HttpMethods, message_bytes_max: int) -> None:
        self._methods: Final = methods
        self._service: Final = ConnectService(
            service=methods,
            endpoints=_endpoints,
            interceptors=[AdmissionInterceptor()],
            read_max_bytes=message_bytes_max,
            compressions=[Gzip()],
            codecs=[MessageCodec(message_bytes_max, is_json=is_json) for is_json in (False, True)],
        )

    def applications(self) -> dict[str, ASGIApp]:
        return {_path(method): partial(self._serve, method) for method in self._methods.by_name.values()}

    async def _serve(self, method: http_calls.HttpMethod, scope: Scope, receive: Receive, send: Send) -> None:
        content_type = http_calls.header_of(scope, b"content-type") or ""
        if content_type.startswith("application/grpc") and not content_type.startswith("application/grpc-web"):
            await wrong_content_type(content_type, GRPC_WEB_TYPES, GRPC_HINT)(scope, receive, send)
            return
        query = scope["query_string"]
        head_bytes = http_calls.drop_head(scope, _is_of_protocol)
        scope["query_string"] = query  # until the package has read it
        request = ConnectRequest(self._methods, method, scope, head_bytes)
        REQUEST.set(request)
        is_replaced = False

        async def explained(message: AsgiMessage) -> None:
            """The package's answers with 405 and 415 are empty."""
            nonlocal is_replaced
            status = message.get("status")
            if status == HTTPStatus.METHOD_NOT_ALLOWED:
                is_replaced, allowed = True, {"Allow": dict(message["headers"])[b"allow"].decode()}
                await wrong_method(scope["path"], scope["method"], allowed)(scope, receive, send)
            elif status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
                is_replaced, accepted = True, UNARY_TYPES if method.is_unary else STREAM_TYPES
                await wrong_content_type(content_type, accepted)(scope, receive, send)
            elif not is_replaced:
                await send(message)

        try:
            await self._service(scope, receive, explained)
        finally:
            if request.context is not None:
                request.context.done()


def _is_of_protocol(name: bytes) -> bool:
    """Return whether the package reads a header."""
    # Compressing an answer would block the loop, so it must not see that the client accepts compression.
    return name.startswith((b"connect-", b"content-", b"grpc-")) and not name.endswith(b"accept-encoding")


def _endpoints(methods: http_calls.HttpMethods) -> Mapping[str, Any]:
    return {_path(method): _endpoint(method) for method in methods.by_name.values()}


def _path(method: http_calls.HttpMethod) -> str:
    return f"/{SERVICE.full_name}/{method.descriptor.name}"


def _endpoint(method: http_calls.HttpMethod) -> Any:  # noqa: ANN401 - of the package's own types
    descriptor = method.descriptor
    level = descriptor.GetOptions().idempotency_level
    stream_type = StreamType.UNARY if method.is_unary else StreamType.SERVER_STREAM
    info: MethodInfo[Any, Any] = MethodInfo(
        name=descriptor.name,
        service_name=SERVICE.full_name,
        input=method.request_type,
        output=method.answer_type,
        idempotency_level=(
            IdempotencyLevel.NO_SIDE_EFFECTS if level == MethodOptions.NO_SIDE_EFFECTS else IdempotencyLevel.UNKNOWN
        ),
        stream_type=stream_type,
    )
    return Endpoint.unary(info, _answer_one) if method.is_unary else Endpoint.server_stream(info, _answer_many)


async def _answer_one(undecoded: Undecoded, ctx: RequestContext[Any, Any]) -> bytes:
    request = REQUEST.get()
    with refusals_as_errors(ctx):
        answer = await request.run(undecoded)
    assert answer is not None, "a unary call has an answer"
    return await request.ready(answer)


async def _answer_many(undecoded: Undecoded, ctx: RequestContext[Any, Any]) -> AsyncGenerator[bytes]:
    request = REQUEST.get()
    written = request.answers = http_calls.WrittenAnswers()
    with refusals_as_errors(ctx):
        async with aclosing(written.of(partial(request.run, undecoded))) as answers:
            async for answer in answers:
                yield answer


@contextmanager
def refusals_as_errors(ctx: RequestContext[Any, Any]) -> Iterator[None]:
    try:
        yield
    except RpcError as refused:
        retry_after_s = retry_after(refused)
        if retry_after_s is not None:
            ctx.response_headers["retry-after"] = str(retry_after_s)
        error: ConnectError = connect_error(refused)
        raise error from None
