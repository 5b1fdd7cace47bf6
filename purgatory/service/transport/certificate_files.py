"""Reads and verifies the TLS files before anything uses them. The result is `TlsMaterial`.

Any fault that would make every handshake fail is detected here and reported in one line that names the file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from purgatory.service.settings import TlsSettings
from purgatory.service.transport.watched_file import read_regular_file

RevokedSerials = frozenset[tuple[bytes, int]]
"""Revoked certificates: the issuer's name (DER) and the serial number."""

_CRL_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)


class CannotUseCertificates(Exception):
    """The TLS files are unusable. The message is one line with the setting, the file and the reason."""


@dataclass(frozen=True)
class TlsMaterial:
    """The verified content of the files: key and certificate match, and the certificate is valid now."""

    key_pem: bytes
    chain_pem: bytes
    certificate: x509.Certificate
    client_ca_pem: bytes | None
    revoked: RevokedSerials
    crl_expires: datetime | None
    """When the first of the revocation lists is due to be replaced; None without lists."""


def files_of(settings: TlsSettings) -> list[Path]:
    paths = (settings.certificate_file, settings.key_file, settings.client_ca_file, settings.crl_file)
    return [path for path in paths if path is not None]


def read_tls_material(settings: TlsSettings, now: datetime) -> TlsMaterial:
    """Read and verify the files. Raises `CannotUseCertificates`."""
    assert settings.certificate_file is not None, "TLS without a certificate"
    assert settings.key_file is not None, "TLS without a key"
    chain_pem = _read("tls.certificate_file", settings.certificate_file)
    key_pem = _read("tls.key_file", settings.key_file)
    # The first one is the certificate of the server; those of its authorities follow.
    certificate = _certificates("tls.certificate_file", settings.certificate_file, chain_pem)[0]
    _check_validity(settings.certificate_file, certificate, now)
    _check_key(settings.key_file, key_pem, settings.certificate_file, certificate)
    client_ca_pem: bytes | None = None
    revoked: RevokedSerials = frozenset()
    crl_expires: datetime | None = None
    if settings.client_ca_file is not None:
        client_ca_pem = _read("tls.client_ca_file", settings.client_ca_file)
        authorities = _certificates("tls.client_ca_file", settings.client_ca_file, client_ca_pem)
        if settings.crl_file is not None:
            lists = _revocation_lists(settings.crl_file, authorities)
            revoked = _revoked(settings.crl_file, lists)
            crl_expires = min((one.next_update_utc for one in lists if one.next_update_utc is not None), default=None)
    return TlsMaterial(key_pem, chain_pem, certificate, client_ca_pem, revoked, crl_expires)


def _read(setting: str, path: Path) -> bytes:
    try:
        return read_regular_file(path)
    except OSError as error:
        raise CannotUseCertificates(f"{setting}: cannot read {path}: {error.strerror or error}") from None


def _certificates(setting: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise CannotUseCertificates(f"{setting}: {path} has no readable certificate; expected PEM") from None


def _check_validity(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise CannotUseCertificates(f"tls.certificate_file: {path} expired on {end:%Y-%m-%d %H:%M} UTC")
    if now < start:
        raise CannotUseCertificates(
            f"tls.certificate_file: {path} is not valid before {start:%Y-%m-%d %H:%M} UTC; is the clock right?"
        )


def _check_key(path: Path, pem: bytes, certificate_path: Path, certificate: x509.Certificate) -> None:
    try:
        is_its_key = load_pem_private_key(pem, password=None).public_key() == certificate.public_key()
    except TypeError:
        raise CannotUseCertificates(f"tls.key_file: {path} is encrypted; write it without a passphrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise CannotUseCertificates(f"tls.key_file: {path} has no readable private key; expected PEM") from None
    if not is_its_key:
        raise CannotUseCertificates(f"tls.key_file: {path} is not the key of the certificate in {certificate_path}")


def _revocation_lists(path: Path, authorities: Sequence[x509.Certificate]) -> list[x509.CertificateRevocationList]:
    """Return the lists in the file, each of them signed by one of the authorities."""
    # By hand, because the library reads only the first list of a file.
    blocks = _CRL_BLOCK.findall(_read("tls.crl_file", path))
    if not blocks:
        raise CannotUseCertificates(f"tls.crl_file: {path} has no revocation list; expected PEM")
    lists: list[x509.CertificateRevocationList] = []
    for block in blocks:
        try:
            one = x509.load_pem_x509_crl(block)
            is_signed = any(_has_signed(authority, one) for authority in authorities)
        except ValueError:
            raise CannotUseCertificates(f"tls.crl_file: {path} has a revocation list that cannot be read") from None
        if not is_signed:
            raise CannotUseCertificates(
                f"tls.crl_file: {path} has a revocation list of {one.issuer.rfc4514_string()} which no certificate in "
                "tls.client_ca_file has signed"
            )
        lists.append(one)
    return lists


def _revoked(path: Path, lists: Sequence[x509.CertificateRevocationList]) -> RevokedSerials:
    try:
        # With the issuer: serial numbers are unique only within one authority.
        return frozenset((one.issuer.public_bytes(), entry.serial_number) for one in lists for entry in one)
    except ValueError:
        raise CannotUseCertificates(f"tls.crl_file: {path} has an entry that cannot be read") from None


def _has_signed(authority: x509.Certificate, one: x509.CertificateRevocationList) -> bool:
    try:
        # Names first, so that only the key of its own authority is tried.
        return authority.subject == one.issuer and one.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, UnsupportedAlgorithm):  # a key of a kind that cannot sign lists
        return False


def valid_for(certificate: x509.Certificate, now: datetime) -> float:
    """Return the seconds until it expires; negative once it has."""
    return (certificate.not_valid_after_utc - now).total_seconds()
