"""TLS for the daemon: credentials for gRPC and a context for HTTP, both from the latest usable files.

The files are checked for changes every few seconds. Once a change has settled, they are read and verified; new
connections then get the new certificate, and open ones continue. Unusable files change nothing; the failure is logged
and counted. gRPC requests new files at each handshake, on a thread of its own.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory.service.errors import unauthenticated
from purgatory.service.histogram import counters
from purgatory.service.settings import TlsSettings
from purgatory.service.transport import certificate_files
from purgatory.service.transport.peer import PeerCertificate, peer_certificate
from purgatory.service.transport.watched_file import Fingerprint, fingerprint

LOGGER: Final = logging.getLogger(__name__)

RELOAD_INTERVAL_S: Final = 5.0
"""Pause between two checks of the files."""

WARNED_BEFORE: Final = timedelta(days=14)
"""How long before expiry a certificate causes a warning; for a short-lived one, the last quarter of its life."""

WARNED_EVERY: Final = timedelta(days=1)


class Tls(Collector):
    """The current contents of the files in the settings. `watch` keeps them up to date.

    The constructor raises `CannotUseCertificates`.
    """

    def __init__(self, settings: TlsSettings, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.asks_clients: Final = settings.client_auth == "required"
        """Whether clients must present a certificate."""
        self._settings: Final = settings
        self._now: Final = now
        self._files: Final = certificate_files.files_of(settings)
        self._read_at: Fingerprint = fingerprint(*self._files)
        """The files that were last read; `_seen` are those of the last check."""
        self._seen = self._read_at
        self._failure = ""
        self._failures = 0
        self._reloads = 0
        self.revoked_refused = 0
        """Calls and requests refused because of a revoked certificate."""
        self._warned_at: datetime | None = None
        self.material: certificate_files.TlsMaterial = certificate_files.read_tls_material(settings, now())
        self._context: ssl.SSLContext = self._new_context(self.material)
        self.http_context: Final = self._new_context(self.material)
        """Connections each get the latest certificate. Clients may present none: see `http/site`."""
        # The listener keeps one context for ever. The callback runs in each handshake, also if the client names no
        # host.
        self.http_context.sni_callback = self._give_latest
        self._for_grpc = self._taken_by_grpc = _grpc_configuration(self.material)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Required of all clients or of none: gRPC for Python cannot request a certificate without requiring it."""
        # None means "nothing new"; the stubs lack it.
        take = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._take_for_grpc)
        return grpc.dynamic_ssl_server_credentials(self._for_grpc, take, self.asks_clients)

    def peer(self, auth_context: Mapping[str, Iterable[bytes]]) -> PeerCertificate | None:
        """Return the caller's certificate, from the `auth_context()` of a call; None if clients are not asked for one.

        Raises `RpcError` (UNAUTHENTICATED) for a revoked certificate.
        """
        peer = peer_certificate(auth_context) if self.asks_clients else None
        if peer is not None and self.is_revoked(peer):
            raise unauthenticated(f"the certificate {peer.serial_number:x} of {peer.subject} has been revoked")
        return peer

    def is_revoked(self, peer: PeerCertificate) -> bool:
        """Return whether the certificate is on a revocation list. Counts it, because the caller is then refused."""
        if (peer.issuer, peer.serial_number) not in self.material.revoked:
            return False
        self.revoked_refused += 1
        return True

    async def watch(self) -> None:
        """Check the files periodically, until cancelled."""
        while True:
            self.warn_of_expiry()
            await asyncio.sleep(RELOAD_INTERVAL_S)
            try:
                self.look()
            except Exception:
                LOGGER.exception("the TLS files could not be checked; still using the old ones")

    def look(self) -> None:
        """Load changed files once two checks have found them the same: they are rarely written all at once."""
        seen, self._seen = self._seen, fingerprint(*self._files)
        if self._seen != seen or self._seen == self._read_at:
            return
        try:
            material = certificate_files.read_tls_material(self._settings, self._now())
            context = self._new_context(material)
        except certificate_files.CannotUseCertificates as error:
            self._keep_old(str(error))
            return
        # Certificate and key were read twice (see `_new_context`). If the files have changed since, the two reads may
        # differ, so the next checks read them again.
        if fingerprint(*self._files) != self._seen:
            return
        self._read_at = self._seen
        self._failure = ""
        self._reloads += 1
        self._warned_at = None
        # Together, and only after both are known to be good.
        self.material, self._context = material, context
        self._for_grpc = _grpc_configuration(material)
        LOGGER.info(
            "new TLS files are in use: certificate %x, valid until %s, %d revoked client certificates",
            material.certificate.serial_number,
            material.certificate.not_valid_after_utc.isoformat(),
            len(material.revoked),
        )

    def warn_of_expiry(self) -> None:
        """Log, once a day, that the certificate or a revocation list expires soon or has expired."""
        now = self._now()
        if self._warned_at is not None and now - self._warned_at < WARNED_EVERY:
            return
        certificate = self.material.certificate
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        left_s = certificate_files.valid_for(certificate, now)
        if left_s < min(WARNED_BEFORE, life / 4).total_seconds():
            self._warned_at = now
            LOGGER.warning(
                "the TLS certificate %s on %s; put a new one into %s",
                "expires" if left_s > 0 else "EXPIRED",
                certificate.not_valid_after_utc.isoformat(),
                self._settings.certificate_file,
            )
        crl_expires = self.material.crl_expires
        if crl_expires is not None and crl_expires < now:
            self._warned_at = now
            LOGGER.warning(
                "the revocation list in %s was due for replacement by %s; it stays in force",
                self._settings.crl_file,
                crl_expires.isoformat(),
            )

    def collect(self) -> Iterable[Metric]:
        text = "Time until the server's certificate expires; negative once it has."
        left_s = certificate_files.valid_for(self.material.certificate, self._now())
        yield GaugeMetricFamily("purgatory_tls_certificate_expiry_seconds", text, left_s)
        text = "Reloads of changed TLS files: applied or refused."
        results = [("taken", self._reloads), ("refused", self._failures)]
        yield counters("purgatory_tls_reloads", text, ["result"], results)
        text = "Calls and requests refused for a revoked certificate."
        yield CounterMetricFamily("purgatory_tls_revoked", text, self.revoked_refused)

    def _keep_old(self, reason: str) -> None:
        """Log each reason once only, because the files are retried: a certificate may become valid in a moment."""
        if reason != self._failure:
            self._failure = reason
            self._failures += 1
            LOGGER.error("the new TLS files cannot be used; still using the old ones: %s", reason)

    def _take_for_grpc(self) -> grpc.ServerCertificateConfiguration | None:
        """Return changes since gRPC last asked. It asks on its own threads, for one handshake at a time."""
        # Read once: the event loop may replace it between two reads on this thread.
        latest = self._for_grpc
        if latest is self._taken_by_grpc:
            return None
        self._taken_by_grpc = latest
        return latest

    def _give_latest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._context

    def _new_context(self, material: certificate_files.TlsMaterial) -> ssl.SSLContext:
        """Read certificate and key again, because ssl takes them from files only. Raises `CannotUseCertificates`.

        TLS 1.3 without tickets: a resumed session would not be verified against the current authorities.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        try:
            context.load_cert_chain(str(self._settings.certificate_file), self._settings.key_file)
            if material.client_ca_pem is not None:
                context.load_verify_locations(cadata=material.client_ca_pem.decode("ascii"))
        except (ssl.SSLError, OSError, UnicodeDecodeError) as error:
            raise certificate_files.CannotUseCertificates(f"tls: the files cannot be used: {error}") from None
        if self.asks_clients:
            # Not CERT_REQUIRED: probes have no certificate. All other requests without one are refused later.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _grpc_configuration(material: certificate_files.TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key_pem, material.chain_pem)], root_certificates=material.client_ca_pem
    )
