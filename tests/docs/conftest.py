"""The daemon that blocks of the documentation talk to."""

from collections.abc import Iterator

import pytest

from purgatory.testing import RunningDaemon, daemon_in_process


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """A new daemon with default settings, in this process."""
    with daemon_in_process("--shutdown-grace-ms", "100") as daemon:
        yield daemon
