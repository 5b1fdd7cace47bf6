"""Adds the methods of a servicer to a gRPC server, and turns refusals and undecodable requests into statuses.

The generated code answers an undecodable request (broken encoding, invalid UTF-8) with UNKNOWN and logs a traceback.
Here requests are decoded inside the call, which then ends with INVALID_ARGUMENT. For that reason the standard services
(health, reflection) are added here too.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2

from purgatory.service.access.account import Account, Accounts
from purgatory.service.errors import RpcError, invalid_argument, shortened
from purgatory.service.fair_queue import EVENTS, INSPECTIONS, REGISTRATIONS, Turn
from purgatory.service.rpc.call import Call, Context, Identify, IncompleteRequest
from purgatory.service.rpc.call_gate import Admission, AdmissionRules, CallGate, MethodCounts
from purgatory.v1 import purgatory_service_pb2

GRPC_LOGGER: Final = logging.getLogger("grpc._cython.cygrpc")
SERVICE: Final = purgatory_service_pb2.DESCRIPTOR.services_by_name["PurgatoryService"]

WORK: Final = {"Advance": EVENTS, "AdvanceStream": EVENTS, "AttachSource": EVENTS, "Acknowledge": EVENTS}
"""Kinds of work by method. Acknowledgements release memory, as events do. See `work_of` for other methods."""

METHOD_LENGTH_MAX: Final = 100
NOT_LOADED: Final = "belongs to an extension that this daemon does not run"

T = TypeVar("T")
Method = Callable[[Any, Call], Awaitable[Message | None]]
Decode = Callable[[bytes], Message]
"""Raises `RpcError` if the bytes are not a message of its type."""

RefuseRevoked = Callable[[Context], object]
"""Raises `RpcError` for a caller whose certificate has been revoked."""


def service_methods(servicer: object, extra: Mapping[str, Method] | None = None) -> dict[str, Method]:
    """All methods of the service by name: those of extensions (`extra`), then the servicer's own. Calls that neither
    serves end with UNIMPLEMENTED.
    """
    names = [method.name for method in SERVICE.methods]
    own = {name: getattr(servicer, name, not_served(name, NOT_LOADED)) for name in names}
    return own | dict(extra or {})


def not_served(name: str, reason: str) -> Method:
    """A method that ends each call with UNIMPLEMENTED."""

    async def refuse(_request: object, _call: Call) -> None:
        raise RpcError(code_pb2.UNIMPLEMENTED, f"{name} {reason}")

    return refuse


def add_to_server(
    methods: dict[str, Method],
    server: grpc.aio.Server,
    gate: CallGate,
    identify: Identify,
    refuse_revoked: RefuseRevoked | None = None,
) -> None:
    """Add the methods of our service (see `service_methods`), behind `gate`.

    `identify` runs for each call before its request is read. It is not an interceptor because gRPC would then create
    two coroutines and a handler for each call.
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
    """Add a standard service (health or reflection), which needs no credential.

    `name` overrides the name in the descriptor.
    """
    methods = {method.name: _takes_context(getattr(servicer, method.name)) for method in service.methods}
    nobody = Accounts().nobody
    _add(service, methods, server, gate, checked(lambda _method: lambda _context: nobody, refuse_revoked), name)


def checked(identify: Identify, refuse_revoked: RefuseRevoked | None) -> Identify:
    """Check for revoked certificates first: a valid token does not make up for one."""
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
    # Once for each service; a logger keeps a filter only once.
    GRPC_LOGGER.addFilter(is_server_fault)
    handlers = {method.name: _handler(method, methods[method.name], gate, identify) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name or service.full_name, handlers),))


def is_server_fault(record: logging.LogRecord) -> bool:
    """Return False for the error that gRPC logs when a caller disconnects while it is answered."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _handler(
    descriptor: MethodDescriptor, method: Method, gate: CallGate, identify: Identify
) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return a handler for one method.

    For gRPC every method reads a stream, at no extra cost: a call can then be refused before its request is read, and
    the request is read and decoded when the call has its turn. A single answer is returned and not written: gRPC sends
    it together with the status.
    """
    many_in, many_out = descriptor.client_streaming, descriptor.server_streaming
    assert many_out or not many_in, f"{descriptor.full_name} answers a stream with one message"
    if not many_out:
        method = _answers_one_request(method)
    elif not many_in:
        method = _reads_one_request(method)
    counts = gate.counts.of(descriptor)
    decode = _decoder(GetMessageClass(descriptor.input_type), counts)
    rules = AdmissionRules(identify(descriptor.name), work_of(descriptor), counts, is_unary=not many_out)
    make = grpc.stream_stream_rpc_method_handler if many_out else grpc.stream_unary_rpc_method_handler
    return make(
        _served(method, decode, gate, rules),
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
    """Return an encoder that passes bytes through: some messages are already encoded."""
    encode: Callable[[Message], bytes] = message_type.SerializeToString

    def encoded(answer: Message | bytes) -> bytes:
        data = answer if isinstance(answer, bytes) else encode(answer)
        counts.sent_bytes += len(data)
        return data

    return encoded


def _served(
    method: Method, decode: Decode, gate: CallGate, rules: AdmissionRules
) -> Callable[[Any, Context], Awaitable[Message | None]]:
    """Wrap a method for gRPC: admit the call, and turn refusals into statuses."""

    async def serve(_requests: object, context: Context) -> Message | None:
        peer = context.peer()
        try:
            admission = Admission(gate, rules, context, peer)
        except RpcError as refused:
            if refused.code == code_pb2.UNAUTHENTICATED:
                await gate.strangers.turn(peer)
            await _refuse(context, refused)
            return None
        incomplete = gate.incomplete_requests.call(admission.caller.key)
        try:
            with admission as call:
                try:
                    return await method(Requests(call, decode, admission.turn, incomplete), call)
                except asyncio.CancelledError:
                    # The task is cancelled by gRPC, when its client is gone, or by `IncompleteRequests`, to free
                    # memory. In the second case the call has to return normally: gRPC would not send the status of a
                    # cancelled one.
                    late = incomplete.refusal()
                    if late is not None:
                        raise late from None
                    # Reset before its request was read, the mark of a rapid reset.
                    if incomplete.is_first:
                        gate.floods.reset(peer)
                    raise
                # Only the standard services abort. Our own methods raise `RpcError`.
                except grpc.aio.AbortError as aborted:
                    _forget_frames(aborted)
                    admission.code = context.code().value[0]
        except RpcError as refused:
            await _refuse(context, refused)
        finally:
            admission.leave()
        return None

    return serve


class UnknownMethods(grpc.GenericRpcHandler):
    """Refuses calls to all other methods, in turn. gRPC would refuse each at once."""

    def __init__(self, gate: CallGate) -> None:
        self._gate: Final = gate
        self._counts: Final = gate.counts.of_unknown()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        method = shortened(handler_call_details.method, METHOD_LENGTH_MAX)

        async def refuse(_requests: object, context: Context) -> None:
            self._counts.add_ended(code_pb2.UNIMPLEMENTED)
            await self._gate.strangers.turn(context.peer())
            await _refuse(
                context, RpcError(code_pb2.UNIMPLEMENTED, f"no such method: {method}; see {SERVICE.full_name}")
            )

        return grpc.stream_stream_rpc_method_handler(refuse)


def _takes_context(method: Callable[[Any, Context], Any]) -> Method:
    """Adapt a method of a standard service, which takes gRPC's context and may yield its answers."""
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
    async def answer(requests: Requests, call: Call) -> Message | None:
        # No variable may refer to the request: it would be kept for as long as the call waits.
        return await method(sent(await requests.read()), call)

    return answer


def _reads_one_request(method: Method) -> Method:
    """Adapt a method with one request and many answers. See `Requests` for why the request is read like a stream's."""

    async def read(requests: Requests, call: Call) -> None:
        await method(sent(await anext(requests, None)), call)

    return read


def sent(request: Any) -> Any:  # noqa: ANN401 - of the call's own type
    """Return the only message of a call. Raises `RpcError` if it was not sent."""
    if request is None:
        raise invalid_argument("request", "was not sent")
    return request


class Requests:
    """The messages of a call, each decoded when the call has a turn. Iterate once.

    gRPC's own iterator is a reference cycle: if it is abandoned early, as by a refusal, it keeps its last message alive
    until the garbage collector runs. A cancelled read, as when the caller disconnects, leaks its operation for good
    (grpc/grpc#43360). Reads are therefore never cancelled here; they end with their call.
    """

    __slots__ = ("_call", "_decode", "_incomplete", "_turn")

    def __init__(self, call: Call, decode: Decode, first_turn: Turn, incomplete: IncompleteRequest) -> None:
        self._call: Final = call
        self._incomplete: Final = incomplete
        self._decode: Final = decode
        self._turn = first_turn

    def __aiter__(self) -> "Requests":
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of the call's own type
        request = await uncancelled(self.read())
        if request is None:
            raise StopAsyncIteration
        return request

    async def read(self) -> Any:  # noqa: ANN401 - of the call's own type
        """Return the next message; None after the last. Cheaper than iterating; for tasks that are never cancelled."""
        self._incomplete.begin()
        try:
            data = await self._call.context.read()
        finally:
            self._incomplete.ended()
        self._incomplete.is_first = False
        if data is grpc.aio.EOF:
            return None
        # For each message: the policy, the token or the certificate may have changed since the call began.
        self._call.recheck()
        await self._turn()
        self._turn = self._call.turn
        # After the turn: decoding a large message is work of this caller like any other.
        return self._decode(data)


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in its own task, which continues if the caller is cancelled, as when a client disconnects."""
    # A task of its own, because a cancellation stops at the shield: the read goes on until the call has ended.
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve_exception)
        raise
    finally:
        del task  # its exception refers to this frame: a cycle


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception, which asyncio would otherwise log as never retrieved."""
    if not task.cancelled():
        task.exception()


async def _refuse(context: Context, refused: RpcError) -> None:
    """Send the status of a call that is about to return. Without an answer before it, clients may repeat the call."""
    try:
        await context.abort_with_status(refused.to_grpc())
    except grpc.aio.AbortError as aborted:
        _forget_frames(aborted)


def _forget_frames(aborted: grpc.aio.AbortError) -> None:
    """Break a reference cycle: gRPC keeps the error in the call, and would keep the request alive with it."""
    aborted.__traceback__ = aborted.__context__ = None
