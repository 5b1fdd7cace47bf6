"""For all tests of the command line: no command outlives its test."""

from collections.abc import Iterator

import pytest

from tests.client.cli.test_commands import Background


@pytest.fixture(autouse=True)
def kill_what_is_left() -> Iterator[None]:
    """A test that fails may leave commands running, and the warnings about them would be another test's."""
    yield
    while Background.started:
        with Background.started.pop() as process:
            process.kill()
