"""The real daemon as a process of its own, on free ports: what every integration test talks to.

It runs the very package that the tests import, with the environment passed on, so that one suite serves the compiled
and the uncompiled engine.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import purgatory

PACKAGE_PARENT: Final = Path(purgatory.__file__).resolve().parent.parent
DEADLINE_S: Final = 60.0
"""For a real process to start or end, on a machine that has much else to do."""


class DaemonProcess:
    """A daemon that serves once constructed. `folder` takes its log and its ready file, one folder for each daemon.

    Raises AssertionError with its log when it does not get to serve.
    """

    def __init__(self, folder: Path, arguments: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path: Final = folder / "daemon.log"
        ready_path = folder / "ready.json"
        ready_path.unlink(missing_ok=True)
        listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--ready-file", str(ready_path)]
        listen += ["--http-metrics-interval-ms", "0"]  # what a test reads is of that moment
        with self.log_path.open("a", encoding="utf-8") as log:
            self.process: Final = subprocess.Popen(
                [sys.executable, "-m", "purgatory", "serve", *listen, *arguments],
                cwd=folder,
                env=daemon_environment(environment),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            ready = self._wait_ready(ready_path)
        except BaseException:
            self.kill()
            raise
        self.address: Final[str] = ready["grpc_address"]
        """Of gRPC, host:port."""
        self.http_address: Final[str] = ready["http_address"]
        """Of HTTP, host:port."""

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end, waits for that, and returns its exit code. Harmless when it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the daemon did not stop in {DEADLINE_S} s; its log:\n{self.log}") from None

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
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


@contextlib.contextmanager
def open_files_max(count: int) -> Iterator[None]:
    """Processes started in the block may open so many files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def run_to_end(
    folder: Path, arguments: Sequence[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the daemon's command line where it is expected to end by itself: --help, a bad setting, a port in use."""
    return subprocess.run(
        [sys.executable, "-m", "purgatory", "serve", *arguments],
        cwd=folder,
        env=daemon_environment(environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def daemon_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests, with the package under test first on the path, and `extra` on top."""
    path = os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Polls until the condition holds. Raises AssertionError with `what` after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def children_of(process_id: int) -> list[int]:
    """The ids of the processes that a process has started: any of its threads may have."""
    threads = Path(f"/proc/{process_id}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text("ascii").split()]


def is_running(process_id: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
