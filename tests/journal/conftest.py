"""Daemons in the test's own process, whose journals try again soon."""

import pytest

from purgatory.journal import thread
from tests.service.in_process import run_daemon

__all__ = ["run_daemon"]


@pytest.fixture(autouse=True)
def try_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal looks for its files, and retries what failed, twenty times per second."""
    monkeypatch.setattr(thread, "IDLE_S", 0.05)
    monkeypatch.setattr(thread, "RETRY_S", 0.05)
