"""The errors that carry no result and no receipt, and the one place where gRPC statuses and refusals become them.

Users find them in `errors`, with those that `results` and `events` define.
"""

from typing import Final

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


class PurgatoryClientError(Exception):
    """Base of all errors of this package."""


class Unavailable(PurgatoryClientError):
    """No connection to the daemon, or it cannot serve the call now. Trying again later may help.

    Attributes:
        is_answer: The daemon itself has said so: it is there.
    """

    is_answer = False


class InvalidRequest(PurgatoryClientError):
    """The request is wrong.

    Attributes:
        field: The part at fault, as a path in the row form of the wire ("produce.partitions[0].required_offset"), or
            empty.
        message: What is wrong with it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field: Final = field
        self.message: Final = message


class LimitExceeded(PurgatoryClientError):
    """A limit of the daemon or of this client is reached; nothing was registered."""


class NotFound(PurgatoryClientError):
    """No such pending operation or partition."""


class PermissionDenied(PurgatoryClientError):
    """Not allowed. The message names the role that is missing, and what for."""


class Unauthenticated(PermissionDenied):
    """The daemon wants to know who calls: there is no token or certificate, or one that it does not take."""


class SessionTakenOver(PurgatoryClientError):
    """Another client opened the same session; this one does not reconnect."""


class SessionClosed(PurgatoryClientError):
    """Somebody closed this client's session, which cancelled its waits. The next wait begins a new session."""


class NoAnswer(PurgatoryClientError):
    """The daemon is there, but has not answered a wait whose timeout passed long ago. It may have been registered."""


class OperationIdInUse(PurgatoryClientError):
    """Somebody else registers in this client's session, and used this operation's id first; it was not registered."""


class ClientClosed(PurgatoryClientError):
    """The client was closed while the call was waiting, or before it."""


class OutboxError(PurgatoryClientError):
    """The outbox file cannot be used, or there is none."""


class OutboxInUse(OutboxError):
    """Another client uses the outbox file."""


class OutboxCopied(OutboxError):
    """The outbox file is an older copy, or another program uses a copy of it. Nothing was acknowledged."""


class OutboxDamaged(OutboxError):
    """The outbox file is not as it was written. It is left as it is."""


class OutboxTooNew(OutboxError):
    """A newer version of this package wrote the outbox file."""


class OutboxUnwritable(OutboxError):
    """The outbox file cannot be written or made: a full or broken disk, or missing rights. Nothing was registered."""


class DaemonError(PurgatoryClientError):
    """The daemon failed in a way that is not the caller's fault."""


class ProtocolError(DaemonError):
    """The daemon sent something that this client cannot make sense of."""


_BY_CODE: Final[dict[int, type[PurgatoryClientError]]] = {
    grpc.StatusCode.CANCELLED.value[0]: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED.value[0]: Unavailable,
    grpc.StatusCode.NOT_FOUND.value[0]: NotFound,
    grpc.StatusCode.PERMISSION_DENIED.value[0]: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: LimitExceeded,
    grpc.StatusCode.UNAVAILABLE.value[0]: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED.value[0]: Unauthenticated,
}
_INVALID: Final = frozenset(
    code.value[0]
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.FAILED_PRECONDITION)
)


def from_code(code: int, field: str, message: str) -> PurgatoryClientError:
    """The error for a `google.rpc.Code` of a status or of a refusal."""
    if code in _INVALID:
        return InvalidRequest(field, message)
    text = f"{field}: {message}" if field else message
    return _BY_CODE.get(code, DaemonError)(text)


def from_rpc_error(error: grpc.aio.AioRpcError) -> PurgatoryClientError:
    """The error for a failed call; the field comes from the rich details (BadRequest) where the daemon gave them."""
    status = rpc_status.from_call(error)
    field = "" if status is None else _field_violated(status)
    message = error.details() or error.code().name
    made = from_code(error.code().value[0], field, message.removeprefix(f"{field}: "))
    if isinstance(made, Unavailable):
        made.is_answer = status is not None  # gRPC itself gives no details when there is nobody to answer
    return made


def _field_violated(status: status_pb2.Status) -> str:
    """The first field named in the BadRequest details of a status, or nothing."""
    for detail in status.details:
        bad_request = error_details_pb2.BadRequest()
        if detail.Is(bad_request.DESCRIPTOR) and detail.Unpack(bad_request) and bad_request.field_violations:
            return str(bad_request.field_violations[0].field)
    return ""
