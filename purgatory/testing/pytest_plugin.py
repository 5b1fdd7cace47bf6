"""A pytest plugin: a daemon for tests, and waits instead of sleeps (docs/test-kit.md).

It is loaded in each run of a project that has the package installed, and starts nothing until a test uses a fixture.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from purgatory.testing.running_daemon import TIMEOUT_S, RunningDaemon, daemon_in_process, daemon_process

if TYPE_CHECKING:
    from purgatory_client import Result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings. Each can also be set for one run: `pytest -o purgatory_in_process=true`."""
    parser.addini("purgatory_arguments", "Flags of the daemon, as for `purgatory serve`.", type="args", default=[])
    parser.addini("purgatory_in_process", "Run the daemon in pytest's own process.", type="bool", default=False)
    parser.addini("purgatory_address", "Use the daemon at this host:port instead of starting one.", default="")
    parser.addini("purgatory_timeout", "Seconds that `processed` waits.", default=f"{TIMEOUT_S:g}")


@pytest.fixture(scope="session")
def purgatory_arguments(pytestconfig: pytest.Config) -> list[str]:
    """Flags of the daemon. Override this fixture (scope session) if they are known only when the tests run."""
    return list(pytestconfig.getini("purgatory_arguments"))


@pytest.fixture(scope="session")
def purgatory(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A daemon for all tests of the run: `.address`, `.http_address`, and `.client`, a blocking client."""
    from purgatory_client import Client  # noqa: PLC0415 - most runs do not need it

    address = pytestconfig.getini("purgatory_address")
    if address:
        with Client(address) as client:
            yield RunningDaemon(client)
        return
    arguments = request.getfixturevalue("purgatory_arguments")  # not requested above, as it may start a broker
    start = daemon_in_process if pytestconfig.getini("purgatory_in_process") else daemon_process
    with start(*arguments) as daemon:
        yield daemon


@pytest.fixture
def processed(pytestconfig: pytest.Config, purgatory: RunningDaemon) -> "Callable[..., Result]":
    """Wait until a consumer group has processed what was written before: `processed("billing", "orders")`.

    The arguments are those of `RunningDaemon.processed`.
    """
    text = pytestconfig.getini("purgatory_timeout")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is None:
        raise pytest.UsageError(f"purgatory_timeout is not a number of seconds: {text!r}")
    return functools.partial(purgatory.processed, timeout=float(text))
