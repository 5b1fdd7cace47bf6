"""Registers a servicer's methods on a gRPC server: refused calls become statuses, and so do undecodable requests.

The generated code answers a request that does not decode (broken encoding, invalid UTF-8) with UNKNOWN and a traceback
in the log. Here decoding returns an `Undecodable` instead of raising, and the call ends with INVALID_ARGUMENT. That is
why the standard services (health, reflection) are registered here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.access.account import Account, Accounts
from purgatory.service.rpc.call import Call, Context, Identify
from purgatory.service.rpc.statuses import CallRefused, invalid_argument, unauthenticated
from purgatory.v1 import purgatory_service_pb2

GRPC_LOGGER: Final = logging.getLogger("grpc._cython.cygrpc")
SERVICE: Final = purgatory_service_pb2.DESCRIPTOR.services_by_name["PurgatoryService"]

QUIET_S: Final = 0.05
"""Shutdown waits until no unary call has ended for so long."""

T = TypeVar("T")
Method = Callable[[Any, Call], Awaitable[Message | None]]


class UnaryCalls:
    """Counts the unary calls in flight, each served within `with calls:`, so that shutdown can wait for their answers.

    A gRPC server that stops gives its grace period to all calls alike: unary ones whose answer is on its way, and
    streams that would never end by themselves (a health watch, an idle stream of events). Only the first deserve it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._served = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.count -= 1
        self._served += 1
        assert self.count >= 0, f"{self.count} calls are being served"

    async def wait_quiet(self, timeout_s: float) -> None:
        """Returns once no call has ended for `QUIET_S`, or after `timeout_s`.

        Calls that have arrived but have not been started yet would otherwise be cut off, not answered with UNAVAILABLE.
        """
        try:
            async with asyncio.timeout(timeout_s):
                served = -1
                while self.count or served != self._served:
                    served = self._served
                    await asyncio.sleep(QUIET_S)
        except TimeoutError:
            return


class Undecodable:
    """A request that is not a message of its type."""

    def __init__(self, error: DecodeError) -> None:
        self.reason: Final = str(error)

    def refusal(self) -> CallRefused:
        return invalid_argument("request", self.reason)


RefuseRevoked = Callable[[Context], object]
"""Raises `CallRefused` for a caller whose certificate has been revoked."""


def add_to_server(
    servicer: object,
    server: grpc.aio.Server,
    calls: UnaryCalls,
    identify: Identify,
    refuse_revoked: RefuseRevoked | None = None,
) -> None:
    """Registers all methods of our service, and counts its unary calls in `calls`.

    `identify` is asked of each call before anything of it is read. Not with an interceptor: gRPC would create two
    coroutines and a handler for each call.
    """
    methods = {method.name: getattr(servicer, method.name) for method in SERVICE.methods}
    _add(SERVICE, methods, server, calls, _checked(identify, refuse_revoked))


def add_standard_service(
    servicer: object,
    server: grpc.aio.Server,
    calls: UnaryCalls,
    service: ServiceDescriptor,
    refuse_revoked: RefuseRevoked | None = None,
) -> None:
    """Registers a service that is not ours, health or reflection: whoever may connect may call it."""
    methods = {method.name: _takes_context(getattr(servicer, method.name)) for method in service.methods}
    nobody = Accounts().nobody
    _add(service, methods, server, calls, _checked(lambda _method: lambda _context: nobody, refuse_revoked))


def _checked(identify: Identify, refuse_revoked: RefuseRevoked | None) -> Identify:
    """Revoked certificates come first: not even a good token makes up for one."""
    if refuse_revoked is None:
        return identify

    def for_method(method: str) -> Callable[[Context], Account]:
        account_of = identify(method)

        def checked(context: Context) -> Account:
            refuse_revoked(context)
            return account_of(context)

        return checked

    return for_method


def _add(
    service: ServiceDescriptor,
    methods: dict[str, Method],
    server: grpc.aio.Server,
    calls: UnaryCalls,
    identify: Identify,
) -> None:
    GRPC_LOGGER.addFilter(is_server_fault)
    handlers = {method.name: _handler(method, methods[method.name], calls, identify) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def is_server_fault(record: logging.LogRecord) -> bool:
    """False for what gRPC logs when a caller disconnects at the very moment it is answered: nobody is at fault."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _handler(
    descriptor: MethodDescriptor, method: Method, calls: UnaryCalls, identify: Identify
) -> grpc.RpcMethodHandler[Any, Any]:
    request_type = GetMessageClass(descriptor.input_type)
    response_type = GetMessageClass(descriptor.output_type)
    many_in, many_out = descriptor.client_streaming, descriptor.server_streaming
    assert many_out or not many_in, f"{descriptor.full_name} answers a stream with one message"
    make = grpc.stream_stream_rpc_method_handler if many_out else grpc.unary_unary_rpc_method_handler
    if many_out:
        method = _reads_requests(method) if many_in else _reads_one_request(method)
    return make(
        _served(descriptor.name, method, identify, contextlib.nullcontext() if many_out else calls),
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
    """For streams, whose messages may be encoded already."""
    encode: Callable[[Message], bytes] = message_type.SerializeToString

    def encoded(answer: Message | bytes) -> bytes:
        return answer if isinstance(answer, bytes) else encode(answer)

    return encoded


def _served(
    name: str, method: Method, identify: Identify, counted: contextlib.AbstractContextManager[None]
) -> Callable[[Any, Context], Awaitable[Message | None]]:
    """The method as gRPC calls it: for a caller that is known, and with refusals turned into statuses."""
    account_of = identify(name)

    def recheck(context: Context, account: Account) -> None:
        if account_of(context) is not account:
            raise unauthenticated("the credential is another principal's now")

    async def serve(request: Message | Undecodable, context: Context) -> Message | None:
        with counted:
            try:
                account = account_of(context)
                call = Call(context, account, partial(recheck, context, account))
                if isinstance(request, Undecodable):
                    raise request.refusal()
                return await method(request, call)
            except CallRefused as refused:
                _refuse(context, refused)
            except grpc.aio.AbortError as aborted:
                aborted.__traceback__ = None  # gRPC keeps the error in the call, a reference cycle: see `_refuse`
            return None

    return serve


def _takes_context(method: Callable[[Any, Context], Any]) -> Method:
    """For services that are not ours, whose methods take gRPC's context, and may yield their answers."""
    if inspect.isasyncgenfunction(method):

        async def write_all(requests: object, call: Call) -> None:
            async for answer in method(requests, call.context):
                await call.context.write(answer)

        return write_all

    async def answer(request: object, call: Call) -> Message | None:
        answered: Message | None = await method(request, call.context)
        return answered

    return answer


def _reads_requests(method: Method) -> Method:

    async def read(_requests: object, call: Call) -> None:
        await method(Requests(call.context, call.recheck), call)

    return read


def _reads_one_request(method: Method) -> Method:
    """For one request and many answers: the request is read like those of a stream, for the reasons of `Requests`."""

    async def read(_requests: object, call: Call) -> None:
        request = await anext(Requests(call.context, call.recheck), None)
        if request is None:
            raise invalid_argument("request", "was not sent")
        await method(request, call)

    return read


class Requests:
    """The messages of a stream, to be iterated once, leaving no garbage however the stream ends.

    gRPC's own iterator is a reference cycle: abandoned before its end, as by a refusal, it keeps its last message alive
    until the garbage collector runs. And a cancelled read, as when the caller disconnects, leaks its operation for good
    (grpc/grpc#43360). So reads here are never cancelled: they end by themselves, with their call.
    """

    def __init__(self, context: Context, recheck: Callable[[], None]) -> None:
        """`recheck` is called for each message, and raises what ends the stream."""
        self._context: Final = context
        self._recheck: Final = recheck

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of the stream's own type
        request = await uncancelled(self.read())
        if request is None:
            raise StopAsyncIteration
        return request

    async def read(self) -> Any:  # noqa: ANN401 - of the stream's own type
        """The next message; None after the last. Cheaper than iterating, for tasks that are never cancelled."""
        request = await self._context.read()
        if request is grpc.aio.EOF:
            return None
        self._recheck()
        if isinstance(request, Undecodable):
            raise request.refusal()
        return request


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` in a task of its own, which goes on when the caller is cancelled, as when its client disconnects."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve_exception)
        raise
    finally:
        del task  # its exception refers to this frame: a cycle


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Otherwise asyncio would log the exception as never retrieved."""
    if not task.cancelled():
        task.exception()


def _refuse(context: Context, refused: CallRefused) -> None:
    """Sets the status of a call that is about to return.

    Not with `context.abort`: its exception and the call refer to each other, and would keep the request alive until the
    garbage collector runs.
    """
    status = refused.to_grpc()
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)
