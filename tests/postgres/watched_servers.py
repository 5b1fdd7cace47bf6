"""Test helpers: a daemon, a source in its own process, and the servers it watches."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from purgatory_client import Client, Outcome, Result
from purgatory_client.errors import NotFound
from purgatory_client.sources.log_positions import lsn_of_offset

from examples.local_postgres import ROLE, LocalPostgres, LocalServer
from tests.kit.daemon import DaemonProcess, daemon_environment
from tests.kit.eventually import PATIENCE_S, wait_until


class WatchedServers:
    """`p`, `r1` and `r2` are the servers; `client` is connected to the daemon of the source."""

    def __init__(
        self, postgres: LocalPostgres, folder: Path, listed: Sequence[str] = ("p", "r1", "r2"), options: str = ""
    ) -> None:
        self.postgres: Final = postgres
        self._folder: Final = folder
        hosts = ",".join(postgres.servers[name].address for name in listed)
        self._address: Final = f"postgres://{hosts}/postgres?servers={','.join(listed)}&user={ROLE}{options}"
        self.daemon: Final = DaemonProcess(folder)
        self.client: Final = Client(self.daemon.address, name="test")
        self._threads: Final = ThreadPoolExecutor(32)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "purgatory_connectors", "postgres", self._address, "--to", self.daemon.address]
        with (self._folder / "source.log").open("ab") as log:
            self._source = subprocess.Popen(
                [*command, "--state-dir", str(self._folder / "state")],
                env=daemon_environment({"PYTHONPATH": os.pathsep.join(sys.path)}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._threads.shutdown(cancel_futures=True)
        self._source.kill()
        self._source.wait()
        self.daemon.kill()
        if error is not None:
            error.add_note(f"the source's log:\n{self.log[-4000:]}")

    @property
    def p(self) -> LocalServer:
        return self.postgres.servers["p"]

    @property
    def r1(self) -> LocalServer:
        return self.postgres.servers["r1"]

    @property
    def r2(self) -> LocalServer:
        return self.postgres.servers["r2"]

    @property
    def log(self) -> str:
        return (self._folder / "source.log").read_text("utf-8")

    # Marks.

    def mark(self, name: str) -> int:
        """The mark of "r1" or "all"; -1 if it does not exist."""
        try:
            return self.client.partition(f"pg/main/{name}").high_watermark
        except NotFound:
            return -1

    def epoch(self, name: str) -> int:
        return self.client.partition(f"pg/main/{name}").leader_epoch

    def stale(self, name: str) -> str:
        """Why the mark is stale; empty if it is not."""
        return self.client.partition(f"pg/main/{name}").stale_reason

    def until_seen(self) -> None:
        """Return when each mark equals its server's position, and none is stale."""
        names = ("p", "r1", "r2", "any", "all", "quorum")
        wait_until(lambda: all(self.mark(name) > 0 and not self.stale(name) for name in names), "all marks are seen")

    def write(self, server: LocalServer | None = None) -> int:
        """Commit a row, and return the end of the log after it."""
        server = self.p if server is None else server
        server.query("INSERT INTO written VALUES (1)")
        return server.position()

    # Waits.

    def wait(self, name: str, offset: int, *, timeout: float = PATIENCE_S) -> Result:
        return self.client.produce({f"pg/main/{name}": offset}, timeout=timeout)

    def wait_later(self, name: str, offset: int, *, timeout: float = PATIENCE_S) -> "Future[Result]":
        """The same in a thread."""
        return self._threads.submit(self.wait, name, offset, timeout=timeout)

    def later(self, call: Callable[[], Result]) -> "Future[Result]":
        """Run any call in a thread."""
        return self._threads.submit(call)

    def assert_all_have(self, offset: int, *servers: LocalServer) -> None:
        """Assert that the servers have replayed up to this position."""
        for server in servers:
            assert server.position() >= offset - 40, f"{server.name}: {server.position()} < {lsn_of_offset(offset)}"


def satisfied(result: Result) -> bool:
    return result.outcome is Outcome.SATISFIED
