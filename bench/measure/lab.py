"""Where a suite measures: its scale, its processes, and the rows that come of it, printed as they come."""

import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.measure.machine import description
from bench.measure.pairing import Figure, Measure, in_turn
from bench.measure.processes import DaemonProcess, Server, Worker, daemon, python_server, python_worker
from bench.measure.result_rows import Row, figure
from bench.peers.jvm import JvmMissing, jvm_worker
from bench.peers.redis import RedisMissing, RedisServer
from bench.scale import Scale

__all__ = ["Lab"]


class Lab:
    """Processes are started when they are first asked for, and end when `close` is called or the block is left."""

    def __init__(self, scale: Scale, skipped: list[str]) -> None:
        self.scale: Final = scale
        self.rows: Final[list[Row]] = []
        self.skipped: Final = skipped
        """Lines that say which peers could not be had; shared by the labs of a run."""
        self._stack: Final = contextlib.ExitStack()
        self._workers: Final[dict[str, Worker | None]] = {}
        self._servers: Final[dict[str, Server | DaemonProcess | RedisServer | None]] = {}

    def close(self) -> None:
        """Ends all processes; new ones may be asked for afterwards."""
        self._workers.clear()
        self._servers.clear()
        self._stack.close()

    def worker(self, module: str, name: str = "") -> Worker:
        """A worker in Python, by module, one for each name."""
        key = f"{module} {name}"
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = self._stack.enter_context(python_worker(module))
        return worker

    def fresh_worker(self, module: str) -> contextlib.AbstractContextManager[Worker]:
        """A worker that nobody has used: for what is measured of a whole process."""
        return python_worker(module)

    def jvm(self, peer: str) -> Worker | None:
        """The worker of "kafka" or "netty"; None where it cannot be had."""
        if peer not in self._workers:
            try:
                self._workers[peer] = self._stack.enter_context(jvm_worker(peer))
            except JvmMissing as missing:
                self._workers[peer] = None
                self.skip(str(missing))
        return self._workers[peer]

    def daemon(self, *arguments: str) -> DaemonProcess:
        """The daemon of this house, one for each command line."""
        key = " ".join(("daemon", *arguments))
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = self._stack.enter_context(daemon(*arguments))
        assert isinstance(server, DaemonProcess)
        return server

    def server(self, module: str) -> Server:
        server = self._servers.get(module)
        if server is None:
            server = self._servers[module] = self._stack.enter_context(python_server(module))
        assert isinstance(server, Server)
        return server

    def redis(self) -> RedisServer | None:
        if "redis" not in self._servers:
            try:
                self._servers["redis"] = self._stack.enter_context(RedisServer())
            except RedisMissing as missing:
                self._servers["redis"] = None
                self.skip(str(missing))
        server = self._servers["redis"]
        assert server is None or isinstance(server, RedisServer)
        return server

    def folder(self) -> Path:
        """A new folder, which outlives all processes that are started after it."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="purgatory-bench-")))

    def skip(self, line: str) -> None:
        """Says once what is not measured, and why."""
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
        """Measures in turn and keeps the rows. Peers that are None could not be had."""
        there = {name: measure for name, measure in peers.items() if measure is not None}
        count = self.scale.runs if runs is None else runs
        rows = in_turn(figures, subject, there, count, description(), warm_up=warm_up)
        self.rows.extend(rows)
        for row in rows:
            beside = "" if row.ratio is None else f"{row.ratio:>8.3g} x {row.peer}"
            print(f"{row.name:<50} {figure(row.value, row.unit):>18} {beside}", file=sys.stderr, flush=True)
