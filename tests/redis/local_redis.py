"""Redis servers on loopback for tests. Raises NoRedis if redis-server is not installed."""

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import redis

from examples.free_ports import free_ports


class NoRedis(Exception):
    """Redis is not installed."""


class LocalRedis:
    """A server without persistence, unless `options` say otherwise. Each needs a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise NoRedis("no redis-server found (Debian: apt-get install redis-server)")
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self._command: Final = [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0", *options,
        ]  # fmt: skip
        self._log: Final = folder / "log"
        self.address: Final = f"127.0.0.1:{self.port}"
        self.client: Final = redis.Redis(port=self.port, protocol=2)
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.02)
            else:
                return

    def follow(self, primary: "LocalRedis") -> None:
        self.client.replicaof("127.0.0.1", primary.port)

    def promote(self) -> None:
        self.client.replicaof("NO", "ONE")

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.info("replication")
        return found

    def write(self) -> int:
        """Set a key, and return the offset after it, which is the position to wait for."""
        self.client.incr("written")
        return int(self.info()["master_repl_offset"])

    def written(self) -> int:
        """How many writes can be read here."""
        return int(self.client.get("written") or 0)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.client.close()
        self.kill()
