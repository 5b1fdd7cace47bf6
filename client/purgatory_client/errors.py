"""Every error this package raises, and the one place where gRPC statuses and refusals become them.

    PurgatoryClientError
    ├── Unavailable            no connection to the daemon, or it is shutting down; trying again later may help
    ├── InvalidRequest         the request is wrong; `field` names the part at fault
    ├── LimitExceeded          a limit of the daemon or of this client is reached; nothing was registered
    ├── NotFound               no such pending operation or partition
    ├── PermissionDenied       not authenticated, or not allowed
    ├── EventRefused           an event was refused and changed nothing; `receipt` has the details
    │   └── StaleEpoch         its leader epoch is older than the partition's (74)
    ├── SessionTakenOver       another client opened a session with the same id
    ├── ClientClosed           the client was closed while the call was waiting, or before it
    ├── OutboxError            the outbox file cannot be used, or there is none
    │   ├── OutboxInUse        another client uses it
    │   ├── OutboxDamaged      it is not as it was written
    │   ├── OutboxTooNew       a newer version of this package wrote it
    │   └── OutboxUnwritable   the disk is full or broken, or the file may not be written; nothing was registered
    ├── DaemonError            the daemon failed in a way that is not the caller's fault
    │   └── ProtocolError      it sent something that this client cannot follow
    └── WaitError              raised by `Result.raise_for_outcome()`; `result` is the whole result
        ├── WaitFailed         the condition can no longer hold
        ├── WaitExpired        time ran out
        ├── WaitCancelled      cancelled at the daemon
        └── WaitShutDown       the daemon shut down first

A wait that expires, fails or is cancelled is an outcome, not an error: it is raised only where a caller asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

if TYPE_CHECKING:
    from purgatory_client.events import AdvanceReceipt
    from purgatory_client.results import Result


class PurgatoryClientError(Exception):
    """Base of all errors of this package."""


class Unavailable(PurgatoryClientError):
    """No connection to the daemon, or it is shutting down."""


class InvalidRequest(PurgatoryClientError):
    """The request is wrong. `field` is the part at fault, as a path in the row form of the wire; may be empty."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field: Final = field
        self.message: Final = message


class LimitExceeded(PurgatoryClientError):
    """A limit is reached; nothing was registered."""


class NotFound(PurgatoryClientError):
    """No such pending operation or partition."""


class PermissionDenied(PurgatoryClientError):
    """Not authenticated, or not allowed."""


class EventRefused(PurgatoryClientError):
    """An event was refused and changed nothing. `receipt` says which and why; the other events were applied."""

    def __init__(self, message: str, receipt: AdvanceReceipt) -> None:
        super().__init__(message)
        self.receipt: Final = receipt


class StaleEpoch(EventRefused):
    """The event's leader epoch is older than the partition's (74)."""


class SessionTakenOver(PurgatoryClientError):
    """Another client opened a session with the same id; this one does not reconnect."""


class ClientClosed(PurgatoryClientError):
    """The client was closed while the call was waiting, or before it."""


class OutboxError(PurgatoryClientError):
    """The outbox file cannot be used, or there is none."""


class OutboxInUse(OutboxError):
    """Another client uses the outbox file."""


class OutboxDamaged(OutboxError):
    """The outbox file is not as it was written."""


class OutboxTooNew(OutboxError):
    """A newer version of this package wrote the outbox file."""


class OutboxUnwritable(OutboxError):
    """The outbox file cannot be written or made: a full or broken disk, or missing rights. Nothing was registered."""


class DaemonError(PurgatoryClientError):
    """The daemon failed in a way that is not the caller's fault."""


class ProtocolError(DaemonError):
    """The daemon sent something that this client cannot follow."""


class WaitError(PurgatoryClientError):
    """A wait that did not end satisfied. `result` is the whole result."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result: Final = result


class WaitFailed(WaitError):
    """The condition can no longer hold; the error codes of the partitions say why."""


class WaitExpired(WaitError):
    """Time ran out."""


class WaitCancelled(WaitError):
    """Cancelled at the daemon: by an operator, or with its session."""


class WaitShutDown(WaitError):
    """The daemon shut down first."""


_BY_CODE: Final[dict[int, type[PurgatoryClientError]]] = {
    grpc.StatusCode.CANCELLED.value[0]: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED.value[0]: Unavailable,
    grpc.StatusCode.NOT_FOUND.value[0]: NotFound,
    grpc.StatusCode.PERMISSION_DENIED.value[0]: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: LimitExceeded,
    grpc.StatusCode.UNAVAILABLE.value[0]: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED.value[0]: PermissionDenied,
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
    field = _field_violated(error)
    message = error.details() or error.code().name
    return from_code(error.code().value[0], field, message.removeprefix(f"{field}: "))


def _field_violated(error: grpc.aio.AioRpcError) -> str:
    """The first field named in the BadRequest details of a status, or nothing."""
    status = rpc_status.from_call(error)
    if status is None:
        return ""
    for detail in status.details:
        bad_request = error_details_pb2.BadRequest()
        if detail.Is(bad_request.DESCRIPTOR) and detail.Unpack(bad_request) and bad_request.field_violations:
            return str(bad_request.field_violations[0].field)
    return ""
