"""Each code of a status or refusal becomes one of the client's errors, with field and message."""

import grpc
import pytest
from purgatory_client import errors
from purgatory_client.errors import from_code


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
def test_code_of_a_status_becomes_its_error(code: grpc.StatusCode, kind: type[errors.PurgatoryClientError]) -> None:
    error = from_code(code.value[0], "timeout_ms", "is wrong")
    assert type(error) is kind
    assert str(error) == "timeout_ms: is wrong"
