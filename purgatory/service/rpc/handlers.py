"""Registers a servicer's methods on a gRPC server: refused calls become statuses, and so do undecodable requests.

The generated code answers a request that does not decode (broken encoding, invalid UTF-8) with UNKNOWN and a traceback
in the log. Here requests are decoded in the call, which then ends with INVALID_ARGUMENT. That is why the standard
services (health, reflection) are registered here too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2

from purgatory.service.access.account import Account, Accounts
from purgatory.service.errors import RpcError, invalid_argument, unauthenticated
from purgatory.service.fair_queue import EVENTS, INSPECTIONS, REGISTRATIONS, Turn
from purgatory.service.rpc.arriving import Arriving
from purgatory.service.rpc.call import Call, Context, Identify
from purgatory.service.rpc.call_counts import MethodCounts
from purgatory.service.rpc.call_gate import CallGate
from purgatory.v1 import purgatory_service_pb2

GRPC_LOGGER: Final = logging.getLogger("grpc._cython.cygrpc")
SERVICE: Final = purgatory_service_pb2.DESCRIPTOR.services_by_name["PurgatoryService"]

WORK: Final = {"Advance": EVENTS, "AdvanceStream": EVENTS, "AttachSource": EVENTS, "Acknowledge": EVENTS}
"""Sorts of work by method: acknowledgements free what results hold, as events do. See `work_of` for the others."""

T = TypeVar("T")
Method = Callable[[Any, Call], Awaitable[Message | None]]
Decode = Callable[[bytes], Message]
"""Raises `RpcError` for what is no message of its type."""


RefuseRevoked = Callable[[Context], object]
"""Raises `RpcError` for a caller whose certificate has been revoked."""


def service_methods(servicer: object, extra: Mapping[str, Method] | None = None) -> dict[str, Method]:
    """All methods of the service by name: those of extensions (`extra`), then the servicer's own. Calls that neither
    serves end with UNIMPLEMENTED.
    """
    own = {method.name: getattr(servicer, method.name, _not_served(method.name)) for method in SERVICE.methods}
    return own | dict(extra or {})


def _not_served(name: str) -> Method:
    async def refuse(_request: object, _call: Call) -> None:
        raise RpcError(code_pb2.UNIMPLEMENTED, f"{name} belongs to an extension that this daemon runs without")

    return refuse


def add_to_server(
    methods: dict[str, Method],
    server: grpc.aio.Server,
    gate: CallGate,
    identify: Identify,
    refuse_revoked: RefuseRevoked | None = None,
) -> None:
    """Registers the methods of our service (see `service_methods`), behind `gate`.

    `identify` is asked of each call before anything of it is read. Not with an interceptor: gRPC would create two
    coroutines and a handler for each call.
    """
    _add(SERVICE, methods, server, gate, checked(identify, refuse_revoked))


def add_standard_service(
    servicer: object,
    server: grpc.aio.Server,
    gate: CallGate,
    service: ServiceDescriptor,
    refuse_revoked: RefuseRevoked | None = None,
    *,
    name: str | None = None,
) -> None:
    """Registers a service that is not ours, health or reflection: whoever may connect may call it. By `name`, if it has
    another one than its descriptor.
    """
    methods = {method.name: _takes_context(getattr(servicer, method.name)) for method in service.methods}
    nobody = Accounts().nobody
    _add(service, methods, server, gate, checked(lambda _method: lambda _context: nobody, refuse_revoked), name)


def checked(identify: Identify, refuse_revoked: RefuseRevoked | None) -> Identify:
    """Revoked certificates come first: not even a good token makes up for one."""
    if refuse_revoked is None:
        return identify

    def for_method(method: str) -> Callable[[Context], Account]:
        account_of = identify(method)

        def account_of_unrevoked(context: Context) -> Account:
            refuse_revoked(context)
            return account_of(context)

        return account_of_unrevoked

    return for_method


def _add(
    service: ServiceDescriptor,
    methods: dict[str, Method],
    server: grpc.aio.Server,
    gate: CallGate,
    identify: Identify,
    name: str | None = None,
) -> None:
    GRPC_LOGGER.addFilter(is_server_fault)
    handlers = {method.name: _handler(method, methods[method.name], gate, identify) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name or service.full_name, handlers),))


def is_server_fault(record: logging.LogRecord) -> bool:
    """False for what gRPC logs when a caller disconnects at the very moment it is answered: nobody is at fault."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _handler(
    descriptor: MethodDescriptor, method: Method, gate: CallGate, identify: Identify
) -> grpc.RpcMethodHandler[Any, Any]:
    """Every method is a stream to gRPC, which costs no more: so a call can be refused before its request is read, and
    is read and decoded in its turn.
    """
    many_in, many_out = descriptor.client_streaming, descriptor.server_streaming
    assert many_out or not many_in, f"{descriptor.full_name} answers a stream with one message"
    if not many_out:
        method = _answers_one_request(method)
    elif not many_in:
        method = _reads_one_request(method)
    counts = gate.counts.of(descriptor)
    decode = _decoder(GetMessageClass(descriptor.input_type), counts)
    return grpc.stream_stream_rpc_method_handler(
        _served(method, decode, work_of(descriptor), gate, identify(descriptor.name), counts, is_unary=not many_out),
        response_serializer=_encoder(GetMessageClass(descriptor.output_type), counts),
    )


def work_of(descriptor: MethodDescriptor) -> int:
    looks = descriptor.name.startswith(("Get", "List"))
    return WORK.get(descriptor.name, INSPECTIONS if looks else REGISTRATIONS)


def _decoder(message_type: type[Message], counts: MethodCounts) -> Decode:
    def decode(data: bytes) -> Message:
        counts.received_bytes += len(data)
        try:
            return message_type.FromString(data)
        except DecodeError as error:
            raise invalid_argument("request", str(error)) from None

    return decode


def _encoder(message_type: type[Message], counts: MethodCounts) -> Callable[[Message | bytes], bytes]:
    """For messages that may be encoded already."""
    encode: Callable[[Message], bytes] = message_type.SerializeToString

    def encoded(answer: Message | bytes) -> bytes:
        data = answer if isinstance(answer, bytes) else encode(answer)
        counts.sent_bytes += len(data)
        return data

    return encoded


def _served(
    method: Method,
    decode: Decode,
    work: int,
    gate: CallGate,
    account_of: Callable[[Context], Account],
    counts: MethodCounts,
    *,
    is_unary: bool,
) -> Callable[[Any, Context], Awaitable[None]]:
    """The method as gRPC calls it: for a caller that is known, in its turn, and with refusals turned into statuses."""

    def recheck(context: Context, account: Account) -> None:
        if account_of(context) is not account:
            raise unauthenticated("the credential is another principal's now")

    async def serve(_requests: object, context: Context) -> None:
        try:
            account = account_of(context)
            caller = gate.enter(context, account, work, is_unary=is_unary)
        except RpcError as refused:
            counts.add_ended(refused.code)
            _refuse(context, refused)
            return
        code = code_pb2.UNKNOWN  # gRPC's answer to an error that nobody expected
        arriving = gate.arriving.call(caller.key)
        try:
            call = Call(context, account, partial(gate.queue.turn, caller, work), partial(recheck, context, account))
            await method(Requests(call, decode, partial(gate.call_turn, context, caller, work), arriving), call)
            code = code_pb2.OK
        except RpcError as refused:
            code = refused.code
            _refuse(context, refused)
        except asyncio.CancelledError:
            late = arriving.refusal()
            code = code_pb2.CANCELLED if late is None else late.code
            if late is None:
                if arriving.is_first:
                    gate.resets.add(context.peer())
                raise
            _refuse(context, late)
        except grpc.aio.AbortError as aborted:
            aborted.__traceback__ = None  # gRPC keeps the error in the call, a reference cycle: see `_refuse`
            code = context.code().value[0]
        finally:
            counts.add_ended(code)
            gate.leave(caller, is_unary=is_unary)

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


def _answers_one_request(method: Method) -> Method:

    async def answer(requests: Requests, call: Call) -> None:
        # No variable refers to the request: it would be kept for as long as the call waits.
        await call.context.write(await method(await requests.read_only(), call))

    return answer


def _reads_one_request(method: Method) -> Method:
    """For one request and many answers: the request is read like those of a stream, for the reasons of `Requests`."""

    async def read(requests: Requests, call: Call) -> None:
        request = await anext(requests, None)
        if request is None:
            raise invalid_argument("request", "was not sent")
        await method(request, call)

    return read


class Requests:
    """The messages of a call, each decoded in its turn. Iterate once; leaves no garbage however the call ends.

    gRPC's own iterator is a reference cycle: abandoned before its end, as by a refusal, it keeps its last message alive
    until the garbage collector runs. And a cancelled read, as when the caller disconnects, leaks its operation for good
    (grpc/grpc#43360). So reads here are never cancelled: they end by themselves, with their call.
    """

    __slots__ = ("_arriving", "_call", "_decode", "_turn")

    def __init__(self, call: Call, decode: Decode, first_turn: Turn, arriving: Arriving) -> None:
        self._call: Final = call
        self._arriving: Final = arriving
        self._decode: Final = decode
        self._turn = first_turn

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of the call's own type
        request = await uncancelled(self.read())
        if request is None:
            raise StopAsyncIteration
        return request

    async def read(self) -> Any:  # noqa: ANN401 - of the call's own type
        """The next message; None after the last. Cheaper than iterating, for tasks that are never cancelled."""
        self._arriving.begin()
        try:
            data = await self._call.context.read()
        finally:
            self._arriving.ended()
        self._arriving.is_first = False
        if data is grpc.aio.EOF:
            return None
        self._call.recheck()
        await self._turn()
        self._turn = self._call.turn
        return self._decode(data)

    async def read_only(self) -> Any:  # noqa: ANN401 - of the call's own type
        """The message of a call that has one. Raises `RpcError` if it was not sent."""
        request = await self.read()
        if request is None:
            raise invalid_argument("request", "was not sent")
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


def _refuse(context: Context, refused: RpcError) -> None:
    """Sets the status of a call that is about to return.

    Not with `context.abort`: its exception and the call refer to each other, and would keep the request alive until the
    garbage collector runs.
    """
    status = refused.to_grpc()
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)
