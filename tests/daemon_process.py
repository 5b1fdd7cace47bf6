"""The real daemon as a separate process on free ports, for all integration tests.

It runs the package that the tests import and inherits the environment, so the same suite tests the compiled and the
uncompiled engine.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import purgatory
from tests.forked_daemon import ForkedDaemon

PACKAGE_PARENT: Final = Path(purgatory.__file__).resolve().parent.parent
DEADLINE_S: Final = 60.0
"""Seconds for a real process to start or end, generous for a busy machine."""
EXECUTED: Final = frozenset({"LD_PRELOAD", "PYTHONPATH"})
"""Variables that take effect only when a program is executed, or before it imports anything."""
StartedDaemon: TypeAlias = ForkedDaemon | subprocess.Popen[bytes]


class DaemonProcess:
    """A daemon that serves once constructed. Its log and ready file are in `folder`; each daemon needs its own.

    Raises AssertionError with the log if it does not start serving.
    """

    def __init__(self, folder: Path, arguments: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path: Final = folder / "daemon.log"
        ready_path = folder / "ready.json"
        ready_path.unlink(missing_ok=True)
        listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--ready-file", str(ready_path)]
        listen += ["--http-metrics-interval-ms", "0"]  # tests read metrics without a cache
        self.process: Final = start_process([*listen, *arguments], folder, environment, self.log_path)
        try:
            ready = self._wait_ready(ready_path)
        except BaseException:
            self.kill()
            raise
        self.address: Final[str] = ready["grpc_address"]
        """The gRPC address, host:port."""
        self.http_address: Final[str] = ready["http_address"]
        """The HTTP address, host:port."""

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the daemon, wait for its end, and return its exit code. Does nothing if it has already ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the daemon did not stop in {DEADLINE_S} s; its log:\n{self.log}") from None

    def kill(self) -> None:
        """Send SIGKILL, as in a crash."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)

    def _wait_ready(self, ready_path: Path) -> dict[str, str]:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log}"
            return ready_path.exists()

        wait_until(is_ready, f"the daemon is ready; its log is {self.log_path}")
        ready: dict[str, str] = json.loads(ready_path.read_text("utf-8"))
        return ready


def start_process(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None,
    log_path: Path,
    module: str = "purgatory",
) -> StartedDaemon:
    """Run the command `serve` of a module in a folder, and append its output to a log."""
    if module == "purgatory" and EXECUTED.isdisjoint(environment or ()):
        return ForkedDaemon(arguments, folder, daemon_environment(environment), log_path)
    with log_path.open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, "serve", *arguments],
            cwd=folder,
            env=daemon_environment(environment),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


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
        timeout=DEADLINE_S,
        check=False,
    )


def daemon_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests, with the package under test first on the path, and with `extra` added."""
    path = os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds. Raises AssertionError with `what` after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def children_of(process_id: int) -> list[int]:
    """The ids of the child processes of a process, started by any of its threads."""
    threads = Path(f"/proc/{process_id}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text("ascii").split()]


def is_running(process_id: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
