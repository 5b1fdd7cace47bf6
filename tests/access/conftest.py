"""The files of a daemon with TLS, as in tests/transport, and daemons in this process, which soon see changed files."""

from tests.transport.conftest import authority, read_files_often, tls_folder

__all__ = ["authority", "read_files_often", "tls_folder"]
