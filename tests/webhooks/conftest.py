"""Daemons in the test's own process."""

from tests.service.in_process import serve_daemon

__all__ = ["serve_daemon"]
