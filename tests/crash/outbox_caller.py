"""The caller with an outbox as a separate process, killed from time to time while daemons are replaced."""

import random
import subprocess
from pathlib import Path
from typing import Final

from tests.client.outbox.outbox_killed import Killed
from tests.crash.wire_caller import Broken
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import wait_until

KILLED: Final = 0.4
WAITS_MAX: Final = 100_000
LINES_MIN: Final = 20
"""Lines of its log that show that the caller has submitted some waits."""


class OutboxCaller:
    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        self.kills = 0
        self._killed: Final = Killed(folder, seed)
        self._random: Final = random.Random(seed)
        self._lives = 0
        self._process: subprocess.Popen[str] | None = None

    def live(self, daemon: DaemonProcess) -> None:
        """Leave the process running, or kill it and start another."""
        if self._process is not None and self._random.random() < KILLED:
            self.kill()
            self.kills += 1
        if self._process is None:
            self._lives += 1
            self._process = self._killed.live(daemon, self._lives, WAITS_MAX)
        elif self._process.poll() is not None:
            error = self._process.stderr.read() if self._process.stderr else ""
            raise Broken(f"the caller with an outbox ended with {self._process.returncode}: {error}")

    def finish(self, daemon: DaemonProcess) -> None:
        """Start a last process that collects all remaining results, once some waits were submitted."""
        wait_until(lambda: len(self._killed.lines()) >= LINES_MIN, "the caller with an outbox has begun")
        self.kill()
        self._killed.finish(daemon)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()

    def check(self) -> set[str]:
        """Check that each wait ended once, and was not delivered again after it was confirmed. Returns their names."""
        return self._killed.check()
