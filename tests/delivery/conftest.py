"""Daemons in the test's own process."""

from tests.service.in_process import run_daemon

__all__ = ["run_daemon"]
