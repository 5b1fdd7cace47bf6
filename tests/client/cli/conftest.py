"""Fixture for all command line tests: no command outlives its test."""

from collections.abc import Iterator

import pytest

from tests.client.cli.test_commands import Background


@pytest.fixture(autouse=True)
def kill_what_is_left() -> Iterator[None]:
    """Kill commands that a failing test left running, because warnings about them would appear in another test."""
    yield
    while Background.started:
        with Background.started.pop() as process:
            process.kill()
