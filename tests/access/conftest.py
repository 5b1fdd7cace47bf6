"""The files of a daemon with TLS, as in tests/transport."""

from tests.transport.conftest import authority, run_daemon, tls_folder

__all__ = ["authority", "run_daemon", "tls_folder"]
