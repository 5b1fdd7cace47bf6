"""The whole daemon in the test's own process, which starts in a tenth of the time of a process of its own."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, Protocol, TypeVar

import pytest

from purgatory.daemon import Daemon
from purgatory.extension import chosen
from purgatory.extensions.installed import ALL, ALL_SETTINGS
from purgatory.flags import read_command_line
from tests.daemon_process import DEADLINE_S

T = TypeVar("T")

GC_FLAGS: Final = [f"--gc-threshold-{number}={value}" for number, value in enumerate(gc.get_threshold())]
"""The daemon tunes the garbage collector of its process: here it must leave it as it is."""


async def start(*arguments: str) -> Daemon:
    """Start a daemon on free ports with these flags."""
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--http-metrics-interval-ms", "0"]
    flags = [*listen, *GC_FLAGS, "--no-gc-freeze", "--shutdown-grace-ms", "100", *arguments]
    settings = read_command_line(flags, "server.py", ALL_SETTINGS).settings
    daemon = Daemon(settings, chosen(ALL, settings))
    await daemon.start()
    return daemon


class InProcessDaemon:
    """A daemon in the test's event loop. Its log is that of the test."""

    def __init__(self, daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
        self.address: Final = daemon.grpc_address
        self.http_address: Final = daemon.http_address
        self.stop: Final = daemon.stop
        self._caplog: Final = caplog

    @property
    def log(self) -> str:
        return self._caplog.text


class RunDaemon(Protocol):
    """Start a daemon with these flags; it is stopped when the test ends."""

    async def __call__(self, *arguments: str) -> InProcessDaemon: ...


@pytest.fixture
async def run_daemon(caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunDaemon]:
    """Start any number of daemons in this process, each with the test's own settings."""
    caplog.set_level(logging.INFO)
    started: list[Daemon] = []

    async def run(*arguments: str) -> InProcessDaemon:
        started.append(await start(*arguments))
        return InProcessDaemon(started[-1], caplog)

    yield run
    for daemon in started:
        await daemon.stop()


class DaemonThread:
    """A daemon in a thread with an event loop of its own, for tests that block."""

    def __init__(self, *arguments: str) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self._daemon: Final = self._run(start(*arguments))
        except BaseException:
            self._end()
            raise
        self.address: Final = self._daemon.grpc_address
        self.http_address: Final = self._daemon.http_address

    def stop(self) -> None:
        """Shut the daemon down. Does nothing if that was done before."""
        if not self._loop.is_closed():
            self._run(self._daemon.stop())
            self._end()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the daemon's event loop."""

        async def called() -> T:
            return function()

        return self._run(called())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class ServeDaemon(Protocol):
    """Start a daemon with these flags; it is stopped when the test ends."""

    def __call__(self, *arguments: str) -> DaemonThread: ...


@pytest.fixture
def serve_daemon(caplog: pytest.LogCaptureFixture) -> Iterator[ServeDaemon]:
    """Start any number of daemons in threads of this process, each with the test's own settings."""
    caplog.set_level(logging.INFO)
    started: list[DaemonThread] = []

    def serve(*arguments: str) -> DaemonThread:
        started.append(DaemonThread(*arguments))
        return started[-1]

    yield serve
    for daemon in started:
        daemon.stop()
