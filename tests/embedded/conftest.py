"""A fixture for the tests of this folder: a purgatory with a reaper."""

from collections.abc import Iterator

import pytest

from purgatory.embedded import EmbeddedPurgatory
from tests.engine.generic.recording_operation import never_called


@pytest.fixture
def purgatory() -> Iterator[EmbeddedPurgatory]:
    with EmbeddedPurgatory("test", never_called) as embedded:
        yield embedded
