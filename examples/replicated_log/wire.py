"""The messages between leader, followers, producer and consumer: gRPC; a line of JSON, then bytes."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

SERVICE: Final = "ReplicatedLog"
LOOPBACK: Final = "127.0.0.1"
OPTIONS: Final = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0), ("grpc.so_reuseport", 0))


class Message(NamedTuple):
    fields: dict[str, Any]
    body: bytes = b""

    def pack(self) -> bytes:
        return json.dumps(self.fields).encode() + b"\n" + self.body

    @classmethod
    def unpack(cls, data: bytes) -> "Message":
        line, _, body = data.partition(b"\n")
        return cls(json.loads(line), body)


Context = grpc.aio.ServicerContext[Message, Message]


def stream_handler(
    method: Callable[[AsyncIterator[Message], Context], Any],
) -> "grpc.RpcMethodHandler[Message, Message]":
    return grpc.stream_stream_rpc_method_handler(method, Message.unpack, Message.pack)


def call_handler(method: Callable[[Message, Context], Any]) -> "grpc.RpcMethodHandler[Message, Message]":
    return grpc.unary_unary_rpc_method_handler(method, Message.unpack, Message.pack)


def connect(port: int) -> grpc.aio.Channel:
    """A channel to the leader."""
    return grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=OPTIONS)


def open_stream(channel: grpc.aio.Channel, name: str) -> grpc.aio.StreamStreamCall[Message, Message]:
    method = channel.stream_stream(f"/{SERVICE}/{name}", Message.pack, Message.unpack)
    return method()


async def call(channel: grpc.aio.Channel, name: str, **fields: object) -> Message:
    """Send one request. Raises grpc.RpcError if the leader failed or is gone."""
    method = channel.unary_unary(f"/{SERVICE}/{name}", Message.pack, Message.unpack)
    answer: Message = await method(Message(fields))
    return answer
