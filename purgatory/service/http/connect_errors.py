"""Refused calls as errors of the Connect protocol, with the same code, message and details as over gRPC."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import Final

from connectrpc.code import Code
from connectrpc.errors import ConnectError, ErrorDetail
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2
from protobuf.wkt import Any
from starlette.responses import JSONResponse

from purgatory.service.errors import RpcError, shortened
from purgatory.service.rpc.handlers import SERVICE

SPELT_DIFFERENTLY: Final = {code_pb2.CANCELLED: Code.CANCELED}
CODES: Final = {
    number: SPELT_DIFFERENTLY.get(number) or Code(name.lower())
    for name, number in code_pb2.Code.items()
    if number != code_pb2.OK
}

PATH_COMPARED_MAX: Final = 100

STATUSES: Final = {
    code_pb2.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    code_pb2.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    code_pb2.NOT_FOUND: HTTPStatus.NOT_FOUND,
    code_pb2.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    code_pb2.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    code_pb2.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    code_pb2.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    code_pb2.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    code_pb2.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
}


def connect_error(refused: RpcError) -> ConnectError:
    return ConnectError(CODES[refused.code], refused.message, [_detail(detail) for detail in refused.details])


def error_response(refused: RpcError) -> JSONResponse:
    """Return the error in the protocol's form, for answers that the package does not write."""
    retry_after_s = retry_after(refused)
    headers = None if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    fields: dict[str, object] = {"code": CODES[refused.code].value, "message": refused.message}
    if refused.details:
        fields["details"] = [
            {"type": detail.DESCRIPTOR.full_name, "value": b64encode(detail.SerializeToString()).decode().rstrip("=")}
            for detail in refused.details
        ]
    return JSONResponse(fields, STATUSES.get(refused.code, HTTPStatus.INTERNAL_SERVER_ERROR), headers)


def _wrong(code: int, message: str, status: HTTPStatus, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer to a request that is not a call."""
    return JSONResponse({"code": CODES[code].value, "message": message}, status, headers)


def wrong_content_type(sent: str, accepted: str, hint: str = "") -> JSONResponse:
    """Return the answer to a request with another Content-Type than those `accepted`."""
    found = f"Content-Type: {shortened(sent)}" if sent else "no Content-Type"
    message = f"the request has {found}; send {accepted.replace(', ', ' or ')}{hint}"
    accept = {"Accept-Post": accepted}
    return _wrong(code_pb2.INVALID_ARGUMENT, message, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, accept)


def wrong_method(path: str, sent: str, headers: Mapping[str, str]) -> JSONResponse:
    """Return the answer to a request with another HTTP method than those in the header `Allow`."""
    allowed = headers.get("Allow", "GET")
    body = ", with a JSON body such as {}" if allowed == "POST" else ""
    message = f"{shortened(sent)} is not served at {shortened(path)}; send {allowed}{body}"
    return _wrong(code_pb2.UNIMPLEMENTED, message, HTTPStatus.METHOD_NOT_ALLOWED, headers)


def wrong_path(path: str, served: Iterable[str]) -> JSONResponse:
    """Return the answer to a request for a path at which nothing is served."""
    by_name = {one.rpartition("/")[2].casefold(): one for one in served}
    # The time that the comparison takes grows with the square of the length.
    closest = get_close_matches(path.rpartition("/")[2][:PATH_COMPARED_MAX].casefold(), by_name, 1)
    hint = f"did you mean {by_name[closest[0]]}?" if closest else f"calls are at /{SERVICE.full_name}/NAME"
    message = f"nothing is served at {path[:PATH_COMPARED_MAX]}; {hint}"
    return _wrong(code_pb2.UNIMPLEMENTED, message, HTTPStatus.NOT_FOUND)


def retry_after(refused: RpcError) -> int | None:
    """Return in how many seconds another attempt may succeed; None if waiting alone does not help."""
    delays = [detail.retry_delay for detail in refused.details if isinstance(detail, error_details_pb2.RetryInfo)]
    return delays[0].seconds + (delays[0].nanos > 0) if delays else None


def _detail(message: Message) -> ErrorDetail:
    """Convert a detail from Google's protobuf to the implementation that the package uses."""
    packed = any_pb2.Any()
    packed.Pack(message)
    return ErrorDetail(Any(type_url=packed.type_url, value=packed.value))
