"""Journals of daemons in the test's own process retry soon."""

import pytest

from purgatory.journal import thread


@pytest.fixture(autouse=True)
def try_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal looks for its files, and retries what failed, twenty times per second."""
    monkeypatch.setattr(thread, "IDLE_S", 0.05)
    monkeypatch.setattr(thread, "RETRY_S", 0.05)
