"""A certificate authority that issues, dates and revokes certificates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, both as PEM."""

    certificate_pem: bytes
    key_pem: bytes
    serial_number: int

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write name.crt and name.key, the key readable only by its owner; returns their paths."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate_pem)
        key.touch(mode=0o600)
        key.write_bytes(self.key_pem)
        return certificate, key


class Authority:
    """Signs certificates for servers and clients. By default a certificate is valid from one day ago until 30 days
    from now. They have the extensions that Python 3.13 and newer demand (docs/security.md, "Certificates").
    """

    def __init__(self, name: str) -> None:
        self._key: Final = ec.generate_private_key(ec.SECP256R1())
        self._name: Final = _named(name)
        key_identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._issuer: Final = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_identifier)
        now = datetime.now(UTC)
        self.certificate_pem: Final = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 365 * DAY)
            .not_valid_after(now + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(key_identifier, critical=False)
            .sign(self._key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )

    def issue(
        self,
        common_name: str,
        *,
        hosts: Iterable[str] = (),
        uris: Iterable[str] = (),
        valid_from: datetime | None = None,
        valid_until: datetime | None = None,
    ) -> Issued:
        """A certificate for `hosts` (names or addresses) and `uris`; a client's certificate needs neither."""
        now = datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [_host(host) for host in hosts]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(common_name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(valid_from or now - DAY)
            .not_valid_after(valid_until or now + 30 * DAY)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(self._issuer, critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not common_name)
        certificate = builder.sign(self._key, hashes.SHA256())
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Issued(certificate.public_bytes(Encoding.PEM), key_pem, certificate.serial_number)

    def revocation_list(self, serial_numbers: Iterable[int], *, next_update: datetime | None = None) -> bytes:
        """A revocation list (PEM) that contains these certificates."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 2 * DAY)
            .next_update(next_update or now + DAY)
        )
        for serial_number in serial_numbers:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial_number).revocation_date(now - DAY)
            builder = builder.add_revoked_certificate(revoked.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
