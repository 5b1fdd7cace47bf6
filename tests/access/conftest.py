"""The files of a daemon with TLS, as in tests/transport."""

from tests.transport.conftest import authority, tls_folder

__all__ = ["authority", "tls_folder"]
