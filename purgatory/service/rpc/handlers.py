"""How the methods of a servicer are put on a gRPC server: refused calls become statuses, undecodable requests too.

The generated code would answer a request that is no valid message (broken encoding, wrong UTF-8) with UNKNOWN
and a traceback in the log. Here decoding never raises but gives an `Undecodable`: the call ends with INVALID_ARGUMENT.
So the standard services (health, reflection) are put on the server here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.rpc.in_flight import UnaryCalls
from purgatory.service.rpc.refusals import CallRefused, invalid_argument
from purgatory.v1 import purgatory_service_pb2

GRPC_LOGGER: Final = logging.getLogger("grpc._cython.cygrpc")
SERVICE: Final = purgatory_service_pb2.DESCRIPTOR.services_by_name["PurgatoryService"]

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Context], Awaitable[Message | None]]


class Undecodable:
    """A request that is no message of its type."""

    def __init__(self, error: DecodeError) -> None:
        self.reason: Final = str(error)

    def refusal(self) -> CallRefused:
        """Why the call is refused."""
        return invalid_argument("request", self.reason)


def add_to_server(
    servicer: object, server: grpc.aio.Server, calls: UnaryCalls, service: ServiceDescriptor = SERVICE
) -> None:
    """Registers all methods of a service; its unary calls are counted in `calls`. Not by an interceptor: for that gRPC
    makes two coroutines and a handler anew for each call.
    """
    GRPC_LOGGER.addFilter(is_no_broken_call)
    handlers = {method.name: _handler(method, getattr(servicer, method.name), calls) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def is_no_broken_call(record: logging.LogRecord) -> bool:
    """False for what gRPC logs when a caller has gone at the very moment it is answered: nobody is at fault."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _handler(descriptor: MethodDescriptor, method: Method, calls: UnaryCalls) -> grpc.RpcMethodHandler[Any, Any]:
    request_type = GetMessageClass(descriptor.input_type)
    response_type = GetMessageClass(descriptor.output_type)
    many_in, many_out = descriptor.client_streaming, descriptor.server_streaming
    assert many_out or not many_in, f"{descriptor.full_name} answers a stream with one message"
    make = grpc.stream_stream_rpc_method_handler if many_out else grpc.unary_unary_rpc_method_handler
    if inspect.isasyncgenfunction(method):
        method = _writing(method)
    if many_out:
        method = _reading(method) if many_in else _reading_one(method)
    return make(
        _refusing(method, contextlib.nullcontext() if many_out else calls),
        request_deserializer=_decoder(request_type),
        response_serializer=_encoder(response_type) if many_out else response_type.SerializeToString,
    )


def _decoder(message_type: type[Message]) -> Callable[[bytes], Message | Undecodable]:
    def decode(data: bytes) -> Message | Undecodable:
        try:
            return message_type.FromString(data)
        except DecodeError as error:
            return Undecodable(error)

    return decode


def _encoder(message_type: type[Message]) -> Callable[[Message | bytes], bytes]:
    """For streams: their messages may be encoded already."""
    encode: Callable[[Message], bytes] = message_type.SerializeToString

    def encoded(answer: Message | bytes) -> bytes:
        return answer if isinstance(answer, bytes) else encode(answer)

    return encoded


def _refusing(method: Method, counted: contextlib.AbstractContextManager[None]) -> Method:
    async def call(request: Message | Undecodable, context: Context) -> Message | None:
        with counted:
            try:
                if isinstance(request, Undecodable):
                    raise request.refusal()
                return await method(request, context)
            except CallRefused as refused:
                _refuse(context, refused)
            except grpc.aio.AbortError as aborted:
                aborted.__traceback__ = None  # gRPC keeps the error in the call: see `_refuse`
            return None

    return call


def _reading(method: Method) -> Method:
    """A method that is given the messages of its stream."""

    async def call(_requests: object, context: Context) -> None:
        await method(Requests(context), context)

    return call


def _reading_one(method: Method) -> Method:
    """A method of one request that answers with many messages. It is read like those of a stream: see `Requests`."""

    async def call(_requests: object, context: Context) -> None:
        request = await anext(Requests(context), None)
        if request is None:
            raise invalid_argument("request", "was not sent")
        await method(request, context)

    return call


def _writing(method: Callable[[Any, Context], AsyncIterator[Message]]) -> Method:
    """A method that yields its answers, as one that writes them."""

    async def call(requests: object, context: Context) -> None:
        async for answer in method(requests, context):
            await context.write(answer)

    return call


class Requests:
    """The messages of a stream, to be iterated once, so that nothing of it is left however it ends.

    What gRPC gives for that refers to itself: left before its end, as by a refusal, it would wait for the garbage
    collector, its last message with it. And a read that is cancelled, as by a caller that goes, leaks its operation for
    good (grpc/grpc#43360). So nothing here is: it ends by itself, with its call.
    """

    def __init__(self, context: Context) -> None:
        self._context: Final = context

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of the stream's own type
        request = await undisturbed(self.read())
        if request is None:
            raise StopAsyncIteration
        return request

    async def read(self) -> Any:  # noqa: ANN401 - of the stream's own type
        """The next message; None after the last. At less cost than iterating, in a task that is never cancelled."""
        request = await self._context.read()
        if request is grpc.aio.EOF:
            return None
        if isinstance(request, Undecodable):
            raise request.refusal()
        return request


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Does it in a task of its own: when the caller is cancelled, as a call is whose client has gone, it goes on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_pass_over)
        raise
    finally:
        del task  # an error of it refers to this frame


def _pass_over(task: asyncio.Future[Any]) -> None:
    """What nobody waits for any more has ended: an error of it would be reported as forgotten."""
    if not task.cancelled():
        task.exception()


def _refuse(context: Context, refused: CallRefused) -> None:
    """Sets the status of a call that now returns. Not `context.abort`: what that raises refers to the call that refers
    to it, with the request and all, and waits for the garbage collector.
    """
    status = refused.to_grpc()
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)
