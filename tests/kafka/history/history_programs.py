"""The programs under test: a daemon with a journal and two sources that publish the same marks to it."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from examples.free_ports import free_ports

DAEMON: Final = "daemon"
SOURCES: Final = ("source-1", "source-2")
START_S: Final = 60.0


class Programs:
    """Processes that may be killed individually. `down`: periods without a daemon."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        grpc, http = free_ports(2)
        self.address: Final = f"127.0.0.1:{grpc}"
        self._log: Final = (folder / "programs.log").open("w")
        serve = ["purgatory", "serve", "--grpc-address", self.address, "--http-address", f"127.0.0.1:{http}"]
        self._commands: Final = {DAEMON: [*serve, "--data-dir", str(folder / "journal")]}
        for name in SOURCES:
            (folder / name).mkdir()
            source = ["purgatory_connectors", "kafka", bootstrap, "--to", self.address]
            source += ["--state-dir", str(folder / name)]
            self._commands[name] = source
        self._running: Final[dict[str, subprocess.Popen[bytes]]] = {}
        self._killed_s = 0.0
        self.down: Final[list[tuple[float, float]]] = []

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", *self._commands[name]]
        self._running[name] = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill(self, name: str) -> None:
        self._killed_s = time.monotonic()
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait()

    def until_served(self) -> None:
        """Wait until the daemon is available again."""
        host, port = self.address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
            except OSError:
                assert time.monotonic() < self._killed_s + START_S, "the daemon did not come back"
                time.sleep(0.05)
            else:
                self.down.append((self._killed_s, time.monotonic()))
                return

    def __enter__(self) -> "Programs":
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._running:
            self.kill(name)
        self._log.close()
