"""Errors that refuse calls, and their gRPC statuses with google.rpc details.

    RpcError            a gRPC status: code, message, details
      invalid_argument     BadRequest naming the field
      not_found            ResourceInfo naming what is missing
      resource_exhausted   QuotaFailure naming the limit; RetryInfo, unless waiting alone makes no room
      unavailable          RetryInfo
      unauthenticated      ErrorInfo
      permission_denied    ErrorInfo with the role and the name it is missing for

A refused item of a batch is not one of these but an engine `Refusal`, reported together with the other items. A batch
that is refused as a whole raises `BatchRejected`: it becomes a status in a unary call, and a receipt in a stream.
"""

from typing import Final

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from purgatory.engine import codes
from purgatory.engine.batches import Refusal

RETRY_AFTER_MS: Final = 1_000
"""Retry delay in refusals that do not depend on a known time, milliseconds."""

DOMAIN: Final = "purgatory"
"""The domain in ErrorInfo."""

ROLE_MISSING: Final = "needs the role "

VALUE_LENGTH_MAX: Final = 80
"""Values quoted in a message are cut to this length, because messages travel in headers, which are small."""
MESSAGE_LENGTH_MAX: Final = 300
"""Errors of libraries, which quote whole values, are cut to this length."""


class RpcError(Exception):
    """Ends a call with this gRPC status. `code` is a google.rpc.Code, `details` are google.rpc messages."""

    def __init__(self, code: int, message: str, *details: Message) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.details: Final = details

    def to_grpc(self) -> grpc.Status:
        """Return code, details and trailing metadata in gRPC's form."""
        status = status_pb2.Status(code=self.code, message=self.message)
        for detail in self.details:
            # The details travel in a trailer, and gRPC limits the size of headers and trailers: see `VALUE_LENGTH_MAX`.
            status.details.add().Pack(detail)
        as_grpc: grpc.Status = rpc_status.to_status(status)
        return as_grpc


class BatchRejected(Exception):
    """A batch is refused as a whole: nothing of it was applied, and it has no results. `retry_after_ms`: see
    `resource_exhausted`.
    """

    def __init__(self, refusal: Refusal, retry_after_ms: int | None = RETRY_AFTER_MS) -> None:
        super().__init__(refusal.message)
        self.refusal: Final = refusal
        self.retry_after_ms: Final = retry_after_ms


def unreadable_batch(field: str, message: str) -> BatchRejected:
    """The batch cannot be decoded. `field` is a path in the batch."""
    return BatchRejected(Refusal(0, codes.INVALID_ARGUMENT, field, message))


def invalid_argument(field: str, description: str) -> RpcError:
    """The request is invalid. `field` is a path in the request; `description` states the fault and the value."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return RpcError(
        code_pb2.INVALID_ARGUMENT, f"{field}: {description}", error_details_pb2.BadRequest(field_violations=[violation])
    )


def check_range(field: str, value: int, lowest: int, highest: int) -> None:
    """Raise `RpcError` if a number of the request is not in `lowest..highest`."""
    if not lowest <= value <= highest:
        raise invalid_argument(field, f"{value} is not in {lowest}..{highest}")


def not_found(resource_type: str, resource_name: str) -> RpcError:
    """The requested object does not exist, or no longer does."""
    name = quoted(resource_name)
    return RpcError(
        code_pb2.NOT_FOUND,
        f"{resource_type} {name} is not known",
        error_details_pb2.ResourceInfo(resource_type=resource_type, resource_name=name, description="not known"),
    )


def resource_exhausted(subject: str, description: str, retry_after_ms: int | None = RETRY_AFTER_MS) -> RpcError:
    """A limit is reached. A retry may succeed after `retry_after_ms` at the earliest; None: waiting alone does not
    help, because someone has to act first.
    """
    violation = error_details_pb2.QuotaFailure.Violation(subject=subject, description=description)
    # Clients repeat a call only if it has a RetryInfo, so a refusal that time cannot lift must not have one.
    advice = [] if retry_after_ms is None else [_retry_info(retry_after_ms)]
    return RpcError(
        code_pb2.RESOURCE_EXHAUSTED,
        f"{subject}: {description}",
        error_details_pb2.QuotaFailure(violations=[violation]),
        *advice,
    )


def unavailable(description: str) -> RpcError:
    """The daemon cannot serve the request at the moment, and the caller is not at fault."""
    return RpcError(code_pb2.UNAVAILABLE, description, _retry_info())


def perhaps_processed(reason: str) -> RpcError:
    """The daemon cannot say whether the call has had its effects. Without RetryInfo: a repeated signal counts twice."""
    return RpcError(code_pb2.UNAVAILABLE, f"{reason}; this call may have been processed")


def unauthenticated(description: str) -> RpcError:
    return RpcError(
        code_pb2.UNAUTHENTICATED, description, error_details_pb2.ErrorInfo(reason="UNAUTHENTICATED", domain=DOMAIN)
    )


def role_missing(role: str, name: str) -> str:
    """Return the message for an operation or event that names a topic or key on which the caller lacks the role."""
    return f"{ROLE_MISSING}{role} for {name}"


def permission_denied(role: str, name: str) -> RpcError:
    """The caller does not have the role on a name in its request. The error does not reveal whether the name exists."""
    return RpcError(
        code_pb2.PERMISSION_DENIED,
        role_missing(role, name),
        error_details_pb2.ErrorInfo(reason="ROLE_MISSING", domain=DOMAIN, metadata={"role": role, "name": name}),
    )


def from_refusal(refusal: Refusal, path: str, retry_after_ms: int | None = RETRY_AFTER_MS) -> RpcError:
    """Turn the refusal of an item into the refusal of the whole call. `path` locates the item in the request.
    `retry_after_ms`: see `resource_exhausted`.
    """
    field = ".".join(part for part in (path, refusal.field) if part)
    if refusal.code == codes.RESOURCE_EXHAUSTED:
        return resource_exhausted(field, refusal.message, retry_after_ms)
    if refusal.code == code_pb2.PERMISSION_DENIED:
        # A `Refusal` has no fields for them; the message has the form of `role_missing`.
        role, _, name = refusal.message.removeprefix(ROLE_MISSING).partition(" for ")
        return permission_denied(role, name)
    if refusal.code == codes.UNAVAILABLE:
        return unavailable(refusal.message)
    if refusal.code == codes.NOT_FOUND:
        return RpcError(
            code_pb2.NOT_FOUND,
            refusal.message,
            error_details_pb2.ResourceInfo(resource_type=field, description=refusal.message),
        )
    return invalid_argument(field, refusal.message)


def quoted(value: object) -> str:
    """Return the repr of `value`, cut to a length that fits into a header."""
    return shortened(repr(value), VALUE_LENGTH_MAX)


def shortened(text: str, length_max: int = MESSAGE_LENGTH_MAX) -> str:
    """Cut a text that may contain values of a request."""
    return text if len(text) <= length_max else f"{text[:length_max]}... ({len(text)} characters)"


def _retry_info(retry_after_ms: int = RETRY_AFTER_MS) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(retry_after_ms)
    return error_details_pb2.RetryInfo(retry_delay=delay)
