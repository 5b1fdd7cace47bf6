"""The whole daemon in the test's own process and event loop, which starts in a tenth of the time of a process."""

import gc
import logging
from collections.abc import AsyncIterator
from typing import Final, Protocol

import pytest

from purgatory.daemon import Daemon
from purgatory.extension import chosen
from purgatory.extensions.installed import ALL, ALL_SETTINGS
from purgatory.flags import read_command_line

GC_FLAGS: Final = [f"--gc-threshold-{number}={value}" for number, value in enumerate(gc.get_threshold())]
"""The daemon tunes the garbage collector of its process: here it must leave it as it is."""


class InProcessDaemon:
    """A daemon that serves on free ports. Its log is that of the test."""

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
        listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--http-metrics-interval-ms", "0"]
        flags = [*listen, *GC_FLAGS, "--no-gc-freeze", "--shutdown-grace-ms", "100", *arguments]
        settings = read_command_line(flags, "server.py", ALL_SETTINGS).settings
        daemon = Daemon(settings, chosen(ALL, settings))
        await daemon.start()
        started.append(daemon)
        return InProcessDaemon(daemon, caplog)

    yield run
    for daemon in started:
        await daemon.stop()
