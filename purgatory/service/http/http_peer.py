"""Who sent a request: what its connection and its headers say."""

from starlette.types import Scope

from purgatory.service.http.http_connection import TRANSPORT
from purgatory.service.transport.peer import PeerCertificate, of_der


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header of this name (in lower case); None: there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def certificate_of(scope: Scope) -> PeerCertificate | None:
    """The client's certificate, which the handshake has verified; None: it has presented none."""
    connection = scope["state"][TRANSPORT].get_extra_info("ssl_object")
    der = None if connection is None else connection.getpeercert(binary_form=True)
    return None if der is None else of_der(der)
