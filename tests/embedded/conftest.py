"""Purgatories for the tests of this folder."""

from collections.abc import Iterator

import pytest

from purgatory.embedded import EmbeddedPurgatory
from purgatory.testing import ManualClock
from tests.engine.generic.recording_operation import never_told


@pytest.fixture
def purgatory() -> Iterator[EmbeddedPurgatory]:
    with EmbeddedPurgatory("test", never_told) as embedded:
        yield embedded


@pytest.fixture
def manual() -> Iterator[tuple[EmbeddedPurgatory, ManualClock]]:
    """No reaper, and time that moves only when told."""
    clock = ManualClock(1000)
    with EmbeddedPurgatory("manual", never_told, clock=clock, reaper_enabled=False) as embedded:
        yield embedded, clock
