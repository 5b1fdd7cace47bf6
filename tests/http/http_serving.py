"""A host that is served over gRPC and HTTP, a client for it, and requests byte by byte, as no library sends them."""

import asyncio
import base64
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote

import aiohttp
import grpc
import h11
from google.protobuf import any_pb2
from google.protobuf.json_format import MessageToJson, Parse
from google.protobuf.message import Message
from google.rpc import status_pb2

from purgatory.clock import Clock
from purgatory.service.http.connect_application import ConnectCalls
from purgatory.service.http.http_calls import HttpMethods
from purgatory.service.http.server_sent_events import ServerSentEvents
from purgatory.service.http.site import HttpSite
from purgatory.service.listeners.listener import Listener
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.settings import HostSettings
from tests.kit.eventually import PATIENCE_S
from tests.kit.served_host import ServedHost, all_methods, serving

SERVICE = "/purgatory.v1.PurgatoryService"
JSON, BINARY = "json", "proto"
CODECS = (JSON, BINARY)
END_OF_STREAM = 2
GRPC_WEB_TRAILERS = 0x80
MESSAGE_BYTES_MAX = 262_144


@dataclass(frozen=True)
class Event:
    """One event as a browser sees it."""

    name: str
    number: str
    data: Any


class EventReader:
    """Reads events and skips comments."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> Event:
        fields: dict[str, str] = {}
        while True:
            line = (await asyncio.wait_for(self.response.content.readline(), PATIENCE_S)).decode()
            assert line, "the stream has ended"
            if line == "\n" and fields:
                return Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value


@dataclass(frozen=True)
class Ending:
    """Result of a call: its responses, and its status (code 0: OK) with details."""

    answers: list[Message]
    status: status_pb2.Status


class HttpCaller:
    """Makes calls with Connect; `served` is the same host over gRPC."""

    def __init__(
        self, served: ServedHost, client: aiohttp.ClientSession, methods: HttpMethods, site: HttpSite, port: int
    ) -> None:
        self.served = served
        self.host = served.host
        self.client = client
        self.methods = methods
        self.gate = methods.gate
        self.site = site
        self.port = port

    async def unary(
        self, method: str, body: Message | bytes, answer: type[Message], codec: str = JSON, **headers: str
    ) -> Ending:
        data = body if isinstance(body, bytes) else encoded(body, codec)
        sent = {"content-type": f"application/{codec}", **headers}
        async with self.client.post(f"{SERVICE}/{method}", data=data, headers=sent) as response:
            return ending_of(response.status, await response.read(), answer, codec)

    async def get(self, method: str, request: Message, answer: type[Message], codec: str = JSON) -> Ending:
        message = base64.urlsafe_b64encode(encoded(request, codec)).decode()
        query = {"message": message, "base64": "1", "encoding": codec, "connect": "v1"}
        async with self.client.get(f"{SERVICE}/{method}", params=query) as response:
            return ending_of(response.status, await response.read(), answer, codec)

    async def streamed(
        self, method: str, request: Message, answer: type[Message], codec: str = JSON, protocol: str = "connect"
    ) -> Ending:
        """All responses of a call in frames, until it ends."""
        answers: list[Message] = []
        async for flags, data in self.frames(method, request, codec, protocol):
            if flags & END_OF_STREAM:
                return Ending(answers, status_of(json.loads(data).get("error")))
            if flags & GRPC_WEB_TRAILERS:
                trailers = (line.partition(": ") for line in data.decode().splitlines())
                return Ending(answers, status_of_trailers({name: value for name, _, value in trailers}))
            answers.append(decoded(data, answer, codec))
        raise AssertionError("the stream has no end")

    async def grpc_web(self, method: str, request: Message, answer: type[Message], codec: str = BINARY) -> Ending:
        return await self.streamed(method, request, answer, codec, "grpc-web")

    async def frames(
        self, method: str, request: Message, codec: str = JSON, protocol: str = "connect"
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield the frames of an answer. A gRPC-Web call without a response has its trailers in the headers."""
        kind = "grpc-web" if (protocol, codec) == ("grpc-web", BINARY) else f"{protocol}+{codec}"
        sent = {"content-type": f"application/{kind}"}
        data = enveloped(encoded(request, codec))
        async with self.client.post(f"{SERVICE}/{method}", data=data, headers=sent) as response:
            assert response.status == 200
            if "grpc-status" in response.headers:
                assert await response.read() == b""
                headers = "\n".join(f"{name.lower()}: {value}" for name, value in response.headers.items())
                yield GRPC_WEB_TRAILERS, headers.encode()
                return
            flags = 0
            while not flags & (END_OF_STREAM | GRPC_WEB_TRAILERS):
                flags, length = struct.unpack(">BI", await response.content.readexactly(5))
                yield flags, await response.content.readexactly(length)


@asynccontextmanager
async def serving_http(
    settings: HostSettings | None = None,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    clock: Clock | None = None,
    listener: Listener | None = None,
) -> AsyncIterator[HttpCaller]:
    async with serving(settings, clock=clock, listener=listener) as served:
        host = served.host
        gate = CallGate(
            host.fair_queue, host.settings.limits, host.listeners, on_events_refused=host.note_refused_events
        )
        methods = HttpMethods(all_methods(host), gate, lambda _method: lambda _context: host.sessions.accounts.nobody)
        calls = {**ConnectCalls(methods, message_bytes_max).applications(), **ServerSentEvents(methods).applications()}
        site = HttpSite([], calls=calls)
        port = await site.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                yield HttpCaller(served, client, methods, site, port)
        finally:
            await site.stop()


async def over_grpc(call: Any) -> Ending:  # noqa: ANN401 - a call of either sort
    answers: list[Message] = []
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            answers.append(await call)
        else:
            answers.extend([answer async for answer in call])
    except grpc.aio.AioRpcError as error:
        trailing = dict(error.trailing_metadata() or ())
        rich = trailing.get("grpc-status-details-bin")
        if rich is not None:
            return Ending(answers, status_pb2.Status.FromString(rich))
        return Ending(answers, status_pb2.Status(code=error.code().value[0], message=error.details()))
    return Ending(answers, status_pb2.Status())


def encoded(message: Message, codec: str) -> bytes:
    return MessageToJson(message).encode() if codec == JSON else message.SerializeToString()


def decoded(data: bytes, message_type: type[Message], codec: str) -> Message:
    return Parse(data, message_type()) if codec == JSON else message_type.FromString(data)


def ending_of(http_status: int, body: bytes, answer: type[Message], codec: str) -> Ending:
    if http_status == 200:
        return Ending([decoded(body, answer, codec)], status_pb2.Status())
    return Ending([], status_of(json.loads(body)))


def status_of(error: dict[str, Any] | None) -> status_pb2.Status:
    """A Connect error as a gRPC status."""
    if error is None:
        return status_pb2.Status()
    name = error["code"].replace("canceled", "cancelled").upper()
    status = status_pb2.Status(code=grpc.StatusCode[name].value[0], message=error["message"])
    for detail in error.get("details", ()):
        value = base64.b64decode(detail["value"] + "=" * (-len(detail["value"]) % 4))
        status.details.append(any_pb2.Any(type_url=f"type.googleapis.com/{detail['type']}", value=value))
    return status


def status_of_trailers(trailers: Mapping[str, str]) -> status_pb2.Status:
    if rich := trailers.get("grpc-status-details-bin"):
        return status_pb2.Status.FromString(base64.b64decode(rich + "=" * (-len(rich) % 4)))
    return status_pb2.Status(code=int(trailers["grpc-status"]), message=unquote(trailers.get("grpc-message", "")))


class Answer(NamedTuple):
    """One response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One connection. `address` is host:port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address: Final = address
        self.socket: Final = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unparsed = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        """Send the packets, each after the daemon has read the one before. The daemon may refuse the last one."""
        for number, packet in enumerate(packets):
            if number:
                with RawConnection(self._address) as other:  # its response shows that the packet was read
                    other.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert other.answer().status == 200
            self.socket.sendall(packet)

    def answer(self, method: str = "GET", *, only_first_bytes: bool = False) -> Answer:
        """The next response. With `only_first_bytes`, the body of an endless response is cut."""
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "localhost")]))
        client.send(h11.EndOfMessage())
        if self._unparsed:
            client.receive_data(self._unparsed)
        head, body = None, b""
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(self.socket.recv(65_536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            if isinstance(event, h11.EndOfMessage) or (only_first_bytes and body):
                break
        assert head is not None, "a body without a status"
        self._unparsed = client.trailing_data[0]
        return Answer(head.status_code, {name.decode(): value.decode() for name, value in head.headers}, body)

    def is_closed(self) -> bool:
        """Whether the daemon closes the connection without sending anything more. Waits for either."""
        try:
            return not self._unparsed and self.socket.recv(1) == b""
        except ConnectionError:
            return True


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None, version: str = "1.1"
) -> bytes:
    """One request, with Host and Content-Length unless `headers` has others."""
    given = {"host": "localhost", **(headers or {})}
    if body is not None and "transfer-encoding" not in given:
        given.setdefault("content-length", str(len(body)))
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode() + (body or b"")


def enveloped(data: bytes, flags: int = 0) -> bytes:
    """A message in a frame of Connect or gRPC-Web."""
    return struct.pack(">BI", flags, len(data)) + data


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks of this many bytes."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])
