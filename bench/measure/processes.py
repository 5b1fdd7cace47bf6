"""The processes of a run: workers that answer lines, and servers that report their address. All end with the run."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.measure.worker import Numbers

__all__ = ["ROOT", "Server", "Worker", "WorkerFailed", "daemon", "python_worker", "run_of"]

ROOT: Final = Path(__file__).resolve().parents[2]
ANSWER_TIMEOUT_S: Final = 600.0
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0


class WorkerFailed(Exception):
    """A worker answered with an error, or exited without an answer."""


class Process:
    """A child process. It is ended, by its id, when the block is left."""

    def __init__(self, command: Sequence[str], *, wants_input: bool) -> None:
        self.command: Final = list(command)
        self._process: Final = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE if wants_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process: by SIGTERM, and by SIGKILL if that takes too long."""
        if self._process.poll() is None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def read_line(self, timeout_s: float) -> str:
        """Read the next line of its output. Raises WorkerFailed if it exits or the line takes too long."""
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], timeout_s)[0]:
            raise WorkerFailed(f"{self.name} has not answered for {timeout_s:.0f} s")
        line = output.readline()
        if not line:
            raise WorkerFailed(f"{self.name} ended with {self._process.wait(STOP_TIMEOUT_S)} instead of answering")
        return line

    @property
    def name(self) -> str:
        return " ".join(Path(word).name if "/" in word else word for word in self.command[:3])


class Worker(Process):
    """A process that answers the protocol of bench/measure/worker.py."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command, wants_input=True)

    def run(self, workload: str, **parameters: str | float) -> Numbers:
        """Run a workload and wait for its numbers. Raises WorkerFailed."""
        self.begin(workload, **parameters)
        return self.result()

    def begin(self, workload: str, **parameters: str | float) -> None:
        """Start a workload. Call `result` next."""
        words = " ".join(f"{name}={value}" for name, value in parameters.items())
        assert self._process.stdin is not None
        self._process.stdin.write(f"run {workload} {words}\n")
        self._process.stdin.flush()

    def result(self) -> Numbers:
        """Wait for the numbers of the workload started last."""
        answered = json.loads(self.read_line(ANSWER_TIMEOUT_S))
        if "error" in answered:
            raise WorkerFailed(f"{self.name}: {answered['error']}")
        numbers: Numbers = answered
        return numbers


def run_of(worker: Worker, workload: str, **parameters: str | float) -> Callable[[], Numbers]:
    """A measurement that runs this workload with these parameters."""
    return lambda: worker.run(workload, **parameters)


class Server(Process):
    """A server process, which prints its address as one line of JSON once it serves."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command, wants_input=False)
        try:
            self.address: Final[str] = json.loads(self.read_line(START_TIMEOUT_S))["address"]
        except BaseException:
            self.stop()
            raise


class DaemonProcess(Process):
    """The Purgatory daemon, which writes its addresses into a ready file."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "purgatory", "serve", "--ready-file", str(ready), "--log-level", "error"]
        command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
        super().__init__([*command, *arguments], wants_input=False)
        try:
            self._wait_for(ready)
            addresses = json.loads(ready.read_text("utf-8"))
            self.address: Final[str] = addresses["grpc_address"]
            self.http_address: Final[str] = addresses["http_address"]
            self._metrics: Final = f"http://{self.http_address}/metrics"
        except BaseException:
            self.stop()
            raise

    def metric(self, name: str) -> float:
        """The present value of a metric, summed over its labels."""
        with urllib.request.urlopen(self._metrics, timeout=START_TIMEOUT_S) as response:  # noqa: S310 - our own
            lines: list[str] = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name)

    def _wait_for(self, ready: Path) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise WorkerFailed(f"the daemon does not serve; it ended with {self._process.poll()}")
            time.sleep(0.01)


@contextlib.contextmanager
def daemon(*arguments: str) -> Iterator[DaemonProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="purgatory-bench-") as folder,
        DaemonProcess(Path(folder), arguments) as process,
    ):
        yield process


def python_worker(module: str, interpreter: str = sys.executable) -> Worker:
    return Worker([interpreter, "-m", module])


def python_server(module: str) -> Server:
    return Server([sys.executable, "-m", module])


def environment() -> dict[str, str]:
    """The environment of all processes: this source tree first on the path, and a fixed hash seed, so that runs are
    alike.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "GRPC_VERBOSITY": "NONE"}
