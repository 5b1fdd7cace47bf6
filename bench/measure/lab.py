"""The environment of a suite: its scale, its processes, and the rows it produces, printed as they are measured."""

import contextlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.measure.pairing import Figure, Measure, in_turn
from bench.measure.processes import DaemonProcess, Server, Worker, daemon, python_server, python_worker
from bench.measure.result_rows import Row, figure
from bench.peers.jvm import JvmMissing, java_version, jvm_worker
from bench.peers.redis import RedisMissing, RedisServer
from bench.scale import Scale
from purgatory.engine import COMPILED

__all__ = ["Lab"]

T = TypeVar("T")


class Lab:
    """Starts processes on first use, and ends them in `close`."""

    def __init__(self, scale: Scale, skipped: list[str]) -> None:
        self.scale: Final = scale
        self.rows: Final[list[Row]] = []
        self.skipped: Final = skipped
        """Lines that name missing peers. Shared by the labs of a run."""
        self._stack: Final = contextlib.ExitStack()
        self._processes: Final[dict[tuple[object, ...], Any]] = {}

    def close(self) -> None:
        """End all processes. New ones can be started afterwards."""
        self._processes.clear()
        self._stack.close()

    def _started(self, start: Callable[..., AbstractContextManager[T]], *arguments: str, name: str = "") -> T | None:
        """The process that `start` creates from these arguments, one per name; None if it is not available."""
        key = (start, *arguments, name)
        if key not in self._processes:
            try:
                self._processes[key] = self._stack.enter_context(start(*arguments))
            except (JvmMissing, RedisMissing) as missing:
                self._processes[key] = None
                self.skip(str(missing))
        process: T | None = self._processes[key]
        return process

    def worker(self, module: str, name: str = "", interpreter: str = sys.executable) -> Worker:
        """A Python worker that runs `module`, one per name and interpreter."""
        worker = self._started(python_worker, module, interpreter, name=name)
        assert worker is not None
        return worker

    def fresh_worker(self, module: str) -> AbstractContextManager[Worker]:
        """A new worker, for measurements of a whole process such as its memory."""
        return python_worker(module)

    def jvm(self, peer: str) -> Worker | None:
        """The worker of "kafka" or "netty"; None if Java or Maven is missing."""
        return self._started(jvm_worker, peer)

    def daemon(self, *arguments: str) -> DaemonProcess:
        """Our daemon, one per command line."""
        process = self._started(daemon, *arguments)
        assert process is not None
        return process

    def server(self, module: str) -> Server:
        server = self._started(python_server, module)
        assert server is not None
        return server

    def redis(self) -> RedisServer | None:
        return self._started(RedisServer)

    def folder(self) -> Path:
        """A new folder. It is deleted after all processes that were started later have ended."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="purgatory-bench-")))

    def skip(self, line: str) -> None:
        """Report, once, what is not measured and why."""
        if line not in self.skipped:
            self.skipped.append(line)
            print(f"-- {line}", file=sys.stderr, flush=True)

    def measure(
        self,
        figures: Sequence[Figure],
        subject: tuple[str, Measure],
        peers: Mapping[str, Measure | None],
        *,
        runs: int | None = None,
        warm_up: bool = True,
    ) -> None:
        """Measure subject and peers in turn and keep the rows. Peers that are None are not available.

        A single pair is measured without a warm-up, which would double the time of `make bench-quick`.
        """
        there = {name: measure for name, measure in peers.items() if measure is not None}
        count = self.scale.runs if runs is None else runs
        rows = in_turn(figures, subject, there, count, description(), warm_up=warm_up and count > 1)
        self.rows.extend(rows)
        for row in rows:
            beside = "" if row.ratio is None else f"{row.ratio:>8.3g} x {row.peer}"
            print(f"{row.name:<50} {figure(row.value, row.unit):>18} {beside}", file=sys.stderr, flush=True)

    def measure_once(self, figures: Sequence[Figure], name: str, measure: Measure) -> None:
        """Measure once, without warm-up or peers."""
        self.measure(figures, (name, measure), {}, runs=1, warm_up=False)


@cache
def description() -> str:
    """The machine, for every row: cores, processor, memory, kernel, Python, Java, compiled or not."""
    parts = [
        f"{len(os.sched_getaffinity(0))} cores",
        _first_value("/proc/cpuinfo", "model name"),
        f"{int(_first_value('/proc/meminfo', 'MemTotal').split()[0]) // 1_000_000} GB",
        f"Linux {platform.release().split('-')[0]}",
        f"{platform.python_implementation()} {'.'.join(str(part) for part in sys.version_info[:3])}",
        java_version(),
        "compiled engine" if COMPILED else "UNCOMPILED engine",
    ]
    return ", ".join(part for part in parts if part)


def _first_value(path: str, name: str) -> str:
    for line in Path(path).read_text("utf-8").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "0"
