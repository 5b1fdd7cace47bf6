"""The error tree: one module, and every status and refusal maps to one of its errors."""

import grpc
import pytest
from purgatory_client import errors
from purgatory_client.base_errors import from_code

from purgatory.cli.exit_codes import Exit, exit_of_error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.Unavailable),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.OUT_OF_RANGE, errors.InvalidRequest),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LimitExceeded),
        (grpc.StatusCode.NOT_FOUND, errors.NotFound),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.INTERNAL, errors.DaemonError),
        (grpc.StatusCode.UNKNOWN, errors.DaemonError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.DaemonError),
    ],
)
def test_codes_become_errors(code: grpc.StatusCode, kind: type[errors.PurgatoryClientError]) -> None:
    """Each code of a status or refusal has its error, whose text contains field and message."""
    error = from_code(code.value[0], "timeout_ms", "is wrong")
    assert type(error) is kind
    assert str(error) == "timeout_ms: is wrong"


def test_every_error_has_an_exit_code() -> None:
    """Every error of the client has its own exit code or the general one."""
    assert exit_of_error(errors.Unavailable("x")) is Exit.UNAVAILABLE
    assert exit_of_error(errors.LimitExceeded("x")) is Exit.REFUSED
    assert exit_of_error(errors.NotFound("x")) is Exit.NOT_FOUND
    assert exit_of_error(errors.ProtocolError("x")) is Exit.ERROR
