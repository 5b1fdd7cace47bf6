"""Fixtures for all tests: daemons that are stopped when the test ends, and a report of tests that cannot run here."""

import itertools
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kit.daemon import DaemonProcess, DaemonThread, InProcessDaemon, RunDaemon, ServeDaemon, StartDaemon, start
from tests.quick_java import use_quick_java

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
"""Without it, gRPC starts threads in a process that is forked while a test has a channel, before it executes its
program.
"""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a shell. Child processes would inherit the ignored signal and not end on Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Daemons inherit this limit. With a lower one, as in many shells, each daemon logs that it reduces its own limits.
_, OPEN_FILES_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES_MAX, 20_000), OPEN_FILES_MAX))

use_quick_java()

settings.register_profile("house", deadline=None)  # a test never asserts an absolute time
settings.load_profile("house")


SPARK_GAVE_UP = "Python worker failed to connect back"
"""Spark waits 10 s for a Python worker to start, which no setting changes. On a busy machine that may not be enough."""

SERVERS = {"kafka_brokers", "log_servers", "postgres", "spark"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with the same servers run in one worker, so that they are started once. So do those of a file that share a
    fixture of their module, or start Java.
    """
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        fixtures = item._fixtureinfo.name2fixturedefs
        is_shared = "java" in fixtures or any(one[-1].scope == "module" for one in fixtures.values())
        groups = SERVERS & fixtures.keys()
        if is_shared and not groups and item.get_closest_marker("xdist_group") is None:
            groups = {str(item.path.relative_to(item.config.rootpath))}
        for group in groups:
            item.add_marker(pytest.mark.xdist_group(group))
        if groups & {"log_servers", "postgres"}:
            item.add_marker(pytest.mark.slow)
        if "java" in fixtures:
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=SPARK_GAVE_UP))


UNFIT = ("Spark needs Java", "no Chromium found", "this client needs", "this scan needs")
"""Texts in the reason of a skip which show that the machine lacks something that a full run needs."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List tests that were skipped for lack of Java or a browser separately from other skips."""
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    counts = {sign: sum(sign in reason for reason in skipped) for sign in UNFIT}
    for sign, count in counts.items():
        if count:
            terminalreporter.section("NOT THE WHOLE SUITE", sep="!", red=True, bold=True)
            reason = next(reason for reason in skipped if sign in reason)
            terminalreporter.write_line(f"{count} tests did not run: {reason}", red=True)


@pytest.fixture
async def run_daemon(caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunDaemon]:
    """Start any number of daemons in the test's event loop."""
    caplog.set_level(logging.INFO)
    started: list[InProcessDaemon] = []

    async def run(*arguments: str) -> InProcessDaemon:
        started.append(InProcessDaemon(await start(*arguments), caplog))
        return started[-1]

    yield run
    for daemon in started:
        await daemon.stop()


@pytest.fixture
def serve_daemon(caplog: pytest.LogCaptureFixture) -> Iterator[ServeDaemon]:
    """Start any number of daemons in threads, for tests that block."""
    caplog.set_level(logging.INFO)
    started: list[DaemonThread] = []

    def serve(*arguments: str, constants: Mapping[str, float] | None = None) -> DaemonThread:
        started.append(DaemonThread(*arguments, constants=constants))
        return started[-1]

    yield serve
    for daemon in started:
        daemon.stop()


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Start any number of daemons as processes."""
    started: list[DaemonProcess] = []
    numbers = itertools.count(1)

    def start(*arguments: str, environment: dict[str, str] | None = None) -> DaemonProcess:
        process = DaemonProcess(tmp_path / f"daemon-{next(numbers)}", arguments, environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    """One daemon with default settings on free ports: .address, .http_address, .process, .log, .stop()."""
    return start_daemon()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon with default settings for the tests of a module."""
    with DaemonProcess(tmp_path_factory.mktemp("shared")) as process:
        yield process
