"""A daemon for a test, started in one of four ways: in the test's event loop, in a thread, as a forked process, or as
an executed one. The fixtures of tests/conftest.py stop what they have started.

All of them run the package that the tests import, so the same suite tests the compiled and the uncompiled engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

import pytest
from purgatory_client.blocking import shared_loop

import purgatory
from purgatory.service.access.tokens import HEAD
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.forked_daemon import TEST_CONSTANTS, ForkedDaemon, set_constants

if TYPE_CHECKING:
    from purgatory.daemon import Daemon

T = TypeVar("T")
PACKAGE_PARENT: Final = Path(purgatory.__file__).resolve().parent.parent
EXECUTED: Final = frozenset({"LD_PRELOAD", "PYTHONPATH"})
"""Variables that take effect only when a program is executed, or before it imports anything."""
EXECUTE: Final = {"PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))}
"""The environment of a program that is executed, with the package under test first on the path."""
LISTEN: Final = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
"""Free ports."""
StartedDaemon: TypeAlias = ForkedDaemon | subprocess.Popen[bytes]


class StartedProcess:
    """A process that serves, its log, and the files that it writes when it is ready."""

    process: StartedDaemon
    log_path: Path
    address: str
    """The gRPC address, host:port."""

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process, wait for its end, and return its exit code. Does nothing if it has already ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not stop in {PATIENCE_S} s; its log:\n{self.log}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)

    def until_ready(self, ready: Sequence[Path]) -> None:
        """Wait until these files exist. A process that does not get there is killed."""

        def is_ready() -> bool:
            assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log}"
            return all(path.exists() for path in ready)

        try:
            wait_until(is_ready, f"the daemon is ready; its log is {self.log_path}")
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class DaemonProcess(StartedProcess):
    """A daemon that serves once constructed. Its log and ready file are in `folder`; each daemon needs its own.
    `constants` of the product are set in its process, by their full names.

    Raises AssertionError with the log if it does not start serving.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "daemon.log"
        ready_path = folder / "ready.json"
        ready_path.unlink(missing_ok=True)
        flags = [*LISTEN, "--ready-file", str(ready_path), *arguments]
        self.process = start_process(flags, folder, environment, self.log_path, constants=constants)
        self.until_ready([ready_path])
        ready: dict[str, str] = json.loads(ready_path.read_text("utf-8"))
        self.address = ready["grpc_address"]
        self.http_address: Final = ready["http_address"]
        """The HTTP address, host:port."""


def start_process(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None,
    log_path: Path,
    module: str = "purgatory",
    constants: Mapping[str, float] | None = None,
) -> StartedDaemon:
    """Run the command `serve` of a module in a folder, and append its output to a log."""
    if module == "purgatory" and EXECUTED.isdisjoint(environment or ()):
        return ForkedDaemon(arguments, folder, daemon_environment(environment), log_path, constants or {})
    assert not constants, "set in forked processes only"
    with log_path.open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, "serve", *arguments],
            cwd=folder,
            env=daemon_environment(environment),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def access_flags(folder: Path, policy: str) -> list[str]:
    """Flags for a policy, and for a file of tokens in the same folder, which may have some (`add_token`)."""
    (folder / "policy.toml").write_text(policy, "utf-8")
    with (folder / "tokens").open("a", encoding="utf-8") as tokens:
        tokens.write(HEAD)
    return ["--access-policy-file", str(folder / "policy.toml"), "--access-tokens-file", str(folder / "tokens")]


@contextlib.contextmanager
def open_files_max(count: int) -> Iterator[None]:
    """Limit the number of open files of processes that are started in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def run_to_end(
    folder: Path, arguments: Sequence[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the daemon's command line in cases where it exits by itself: --help, a bad setting, a port in use."""
    return subprocess.run(
        [sys.executable, "-m", "purgatory", "serve", *arguments],
        cwd=folder,
        env=daemon_environment(environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def daemon_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests, with the package under test first on the path, and with `extra` added."""
    return os.environ | EXECUTE | dict(extra or {})


def children_of(process_id: int) -> list[int]:
    """The ids of the child processes of a process, started by any of its threads."""
    while True:
        threads = Path(f"/proc/{process_id}/task").iterdir()
        try:
            return [int(child) for thread in threads for child in (thread / "children").read_text("ascii").split()]
        except (FileNotFoundError, ProcessLookupError):
            # A thread has ended, and its children are another thread's now.
            if not is_running(process_id):
                raise


def is_running(process_id: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def start(*arguments: str, constants: Mapping[str, float] | None = None) -> Daemon:
    """Start a daemon on free ports with these flags. Constants of the product are set in this process."""
    # Only tests that start a daemon in this process import it.
    from purgatory.daemon import Daemon
    from purgatory.extension import chosen
    from purgatory.extensions.installed import ALL, ALL_SETTINGS
    from purgatory.flags import read_command_line

    flags = [*LISTEN, "--shutdown-grace-ms", "100", *arguments]
    settings = read_command_line(flags, "server.py", ALL_SETTINGS).settings
    set_constants(TEST_CONSTANTS | dict(constants or {}))
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


class DaemonThread:
    """A daemon in the thread of the blocking clients, for tests that block."""

    def __init__(self, *arguments: str, constants: Mapping[str, float] | None = None) -> None:
        self._daemon: Final = shared_loop().run(start(*arguments, constants=constants))
        self.address: Final = self._daemon.grpc_address
        self.http_address: Final = self._daemon.http_address

    def stop(self) -> None:
        """Shut the daemon down. Does nothing if that was done before."""
        shared_loop().run(self._daemon.stop())

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the daemon's event loop."""

        async def called() -> T:
            return function()

        return shared_loop().run(called())


RunDaemon: TypeAlias = Callable[..., Awaitable[InProcessDaemon]]
"""Start a daemon with the flags that are given in the test's event loop."""
ServeDaemon: TypeAlias = Callable[..., DaemonThread]
"""Start a daemon with these flags, and `constants` of the product by their full names, in a thread."""
StartDaemon: TypeAlias = Callable[..., DaemonProcess]
"""Start a daemon with these flags, and `environment` variables besides, in a process."""
