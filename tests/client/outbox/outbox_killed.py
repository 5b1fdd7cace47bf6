"""Kills and restarts the caller in outbox_child.py, and checks its log."""

import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from purgatory_client import Client

from tests.client.outbox.outbox_child import OFFSET_MAX, PARTITIONS
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S

ROOT = Path(__file__).parents[3]


class Killed:
    """The caller in tests/client/outbox/outbox_child.py, killed and restarted while the test advances the marks."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.log = folder / "caller.log"
        self.log.touch()
        self.high_watermark = 0

    def live(self, daemon: DaemonProcess, life: int, count: int) -> subprocess.Popen[str]:
        """Start a new process of the caller."""
        module = "tests.client.outbox.outbox_child"
        arguments = [daemon.address, str(self.folder), str(life), str(count)]
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
        )

    def advance(self, client: Client, step: int) -> None:
        """Advance all marks."""
        self.high_watermark = min(OFFSET_MAX, self.high_watermark + step)
        for partition in range(PARTITIONS):
            client.advance(f"p-{partition}", high_watermark=self.high_watermark)

    def kill_at_random(self, daemon: DaemonProcess, life: int) -> None:
        """Run the caller until it has logged a random number of lines, then kill it."""
        with self.live(daemon, life, 100_000) as process, Client(daemon.address) as client:
            lines = len(self.lines()) + self.random.randint(0, 100)
            deadline = time.monotonic() + PATIENCE_S
            try:
                while len(self.lines()) < lines:
                    assert process.poll() is None, process.stderr.read() if process.stderr else ""
                    assert time.monotonic() < deadline, f"the caller wrote {len(self.lines())} lines, not {lines}"
                    self.advance(client, 1)
                    time.sleep(self.random.uniform(0, 0.01))
            finally:
                process.kill()

    def finish(self, daemon: DaemonProcess) -> None:
        """Run the caller a last time: it collects the remaining results and exits by itself."""
        with self.live(daemon, 0, 0) as process, Client(daemon.address) as client:
            self.advance(client, OFFSET_MAX)
            try:
                _, error = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the caller did not end; the daemon says\n{client.status()}") from None
            finally:
                process.kill()
            assert process.returncode == 0, error

    def lines(self) -> list[str]:
        """The complete lines of the caller's log."""
        return self.log.read_text("utf-8").rpartition("\n")[0].splitlines()

    def check(self) -> set[str]:
        """Check that each wait ended, always with the same result, and never reappeared once confirmed. Returns the
        tags.
        """
        outcomes: dict[str, set[str]] = defaultdict(set)
        seen, confirmed = set(), set()
        for line in self.lines():
            what, tag, *rest = line.split()
            assert tag not in confirmed, f"{line!r} after it was confirmed"
            seen.add(tag)
            if what == "result":
                outcomes[tag].add(rest[0])
            elif what == "confirmed":
                confirmed.add(tag)
        assert seen == set(outcomes), f"without a result: {seen - set(outcomes)}"
        ambiguous = {tag: ends for tag, ends in outcomes.items() if len(ends) > 1}
        assert not ambiguous, f"ended in more than one way: {ambiguous}"
        return seen
