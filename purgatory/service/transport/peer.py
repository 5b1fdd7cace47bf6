"""The client certificate of a connection, parsed once for all calls on it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

PEERS_REMEMBERED: Final = 4_096
"""Number of certificates that are kept parsed, each a kilobyte or two."""


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A client's certificate, verified by the handshake. Names that it does not have are empty.

    `subject` is the whole name in RFC 4514 notation ("CN=orders,O=Example").
    """

    common_name: str
    subject: str
    uris: tuple[str, ...]
    """For example a SPIFFE id."""
    serial_number: int
    issuer: bytes
    """The issuer's name (DER)."""

    @property
    def principal(self) -> str:
        """The principal for the policy: the common name or, without one, the first URI."""
        return self.common_name or (self.uris[0] if self.uris else "")


def peer_certificate(auth_context: Mapping[str, Iterable[bytes]]) -> PeerCertificate | None:
    """Return the certificate of a call, from its context's `auth_context()`; None if the client presented none."""
    pem = next(iter(auth_context.get("x509_pem_cert", ())), None)
    return None if pem is None else _of_pem(pem)


@lru_cache(PEERS_REMEMBERED)
def _of_pem(pem: bytes) -> PeerCertificate:
    return of_certificate(x509.load_pem_x509_certificate(pem))


@lru_cache(PEERS_REMEMBERED)
def of_der(der: bytes) -> PeerCertificate:
    """Parse a certificate as returned by Python's ssl."""
    return of_certificate(x509.load_der_x509_certificate(der))


def of_certificate(certificate: x509.Certificate) -> PeerCertificate:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternatives = x509.SubjectAlternativeName([])
    return PeerCertificate(
        str(names[0].value) if names else "",
        certificate.subject.rfc4514_string(),
        tuple(alternatives.get_values_for_type(x509.UniformResourceIdentifier)),
        certificate.serial_number,
        certificate.issuer.public_bytes(),
    )
