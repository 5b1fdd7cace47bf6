"""Errors of a failed call, from the status that gRPC or the daemon gave."""

import re
from typing import Final

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from purgatory_client import errors

STATUS_LOST: Final = "Internal error from Core"
"""The details that grpc.aio puts in place of the daemon's status if a stream ends while a message is being written.
Only another stream can tell why it ended."""

HTTP1: Final = "http1.x server"
"""Part of gRPC's message if a server at the address answers in HTTP/1: most likely the daemon's HTTP port was given."""
_WRONG_PORT: Final = "this port answers HTTP/1 and not gRPC; give the daemon's gRPC address (by default port 7440)"
_NOT_CONNECTED: Final = re.compile(
    r"(?:failed to connect to all addresses|connections to all backends failing); last error: [A-Z_]+: "
    r"(?:ipv.:(\S+: ))?(?:Failed to connect to remote host: )?|errors resolving \S+: \[field:hostname lookup error:"
)
"""gRPC's words before the reason why no connection could be made."""
_REASONS: Final = {
    HTTP1: _WRONG_PORT,
    "Hostname ": "its certificate is for another host: connect to a name in the certificate",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not from a trusted authority: give that one as tls_ca or --tls-ca",
    "WRONG_VERSION_NUMBER": "this daemon does not speak TLS: connect without it",
    "security handshaker": "tls_ca, tls_certificate or tls_key is not a PEM file of that kind",
    "Socket closed": "the connection was closed at once; if this daemon speaks TLS: give tls_ca or --tls-ca",
}
"""By a part of the reason that gRPC or TLS gives: what it means for the caller."""

_BY_CODE: Final[dict[int, type[errors.PurgatoryClientError]]] = {
    code_pb2.CANCELLED: errors.Unavailable,
    code_pb2.DEADLINE_EXCEEDED: errors.Unavailable,
    code_pb2.UNAVAILABLE: errors.Unavailable,
    code_pb2.INVALID_ARGUMENT: errors.InvalidRequest,
    code_pb2.OUT_OF_RANGE: errors.InvalidRequest,
    code_pb2.FAILED_PRECONDITION: errors.InvalidRequest,
    code_pb2.NOT_FOUND: errors.NotFound,
    code_pb2.PERMISSION_DENIED: errors.PermissionDenied,
    code_pb2.UNAUTHENTICATED: errors.Unauthenticated,
    code_pb2.RESOURCE_EXHAUSTED: errors.LimitExceeded,
}


def from_code(code: int, field: str, message: str) -> errors.PurgatoryClientError:
    """The error for a `google.rpc.Code` of a status or of a refusal."""
    kind = _BY_CODE.get(code, errors.DaemonError)
    if kind is errors.InvalidRequest:
        refused = errors.InvalidRequest(field, message)
        refused.is_answer = True
        return refused
    return kind(f"{field}: {message}" if field else message)


def from_rpc_error(error: grpc.aio.AioRpcError, address: str = "") -> errors.PurgatoryClientError:
    """The error for a failed call to `address`; the field comes from the BadRequest details, if there are any."""
    status = rpc_status.from_call(error)
    field = "" if status is None else _field_violated(status)
    message = reason_of(error.details()) or error.code().name
    made = from_code(error.code().value[0], field, message.removeprefix(f"{field}: "))
    if isinstance(made, errors.Unavailable):
        made.is_answer = status is not None  # errors that gRPC itself raises have no status details
        made.address = address
    return made


def reason_of(details: str | None) -> str:
    """The details of a status, without gRPC's own words where no connection could be made."""
    reason = _NOT_CONNECTED.sub(r"\1", details or "", count=1)
    return reason if reason == details else meaning_of(reason.removesuffix("]"))


def meaning_of(reason: str) -> str:
    """Explain to the caller why no connection could be made. Returns the reason itself if it is not a known one."""
    return next((meaning for part, meaning in _REASONS.items() if part in reason), reason)


def _field_violated(status: status_pb2.Status) -> str:
    """The first field named in the BadRequest details of a status, or nothing."""
    for detail in status.details:
        bad_request = error_details_pb2.BadRequest()
        if detail.Is(bad_request.DESCRIPTOR) and detail.Unpack(bad_request) and bad_request.field_violations:
            return str(bad_request.field_violations[0].field)
    return ""
