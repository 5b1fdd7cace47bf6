"""`purgatory top` in a pseudo-terminal of 80 columns, as over ssh, with a real daemon and hostile names."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from purgatory_client import Client, batches

from purgatory.cli.exit_codes import Exit
from tests.client.cli.test_commands import PROGRAM, purgatory
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S

EVIL = "\x1b]0;x\x07\u202e[red]"
KINDS = {"bulk": 4_000, "urgent": 5}
SHOWN = r"\x1b]0;x\x07\u202e"


class PseudoTerminal:
    """A program in a pseudo-terminal, and everything that it has written there."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, packages: str = "") -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        found = environment()
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**found, "PYTHONPATH": f"{packages}:{found['PYTHONPATH']}", "TERM": "xterm-256color", "COLUMNS": ""},
            start_new_session=True,
        )
        os.close(other)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    @property
    def written(self) -> str:
        return self._written.decode("utf-8", "replace")

    def until(self, text: str, since: int = 0) -> None:
        """Wait until a text has been written after the first `since` characters, ignoring control sequences."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in plain(self.written[since:]):
            assert time.monotonic() < deadline, f"{text!r} was not shown; last: {plain(self.written[-3_000:])!r}"
            assert self.process.poll() is None, self.written
            time.sleep(0.02)

    def end(self) -> int:
        """Wait for the program to end; returns its exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        os.close(self._main)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._main, 65_536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self._written += data


def plain(written: str) -> str:
    """The written text without control sequences."""
    return re.sub(r"\x1b(\[[0-9;?<>=$]*[a-zA-Z]|[()][A-B0]|[=>])", "", written)


@pytest.fixture(scope="module")
def busy_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, Client]]:
    """A daemon with waits on a hostile key and on a partition, and a client to inspect it. The last test kills it."""
    pytest.importorskip("textual")
    daemon = DaemonProcess(tmp_path_factory.mktemp("top"))
    try:
        with Client(daemon.address) as client:
            client.register("busy", 1, batches.signal([EVIL], timeouts_ms=[600_000]))
            client.register("busy", 2, batches.produce(["orders-3"], offsets=[42], timeouts_ms=[600_000]))
            yield daemon, client
    finally:
        daemon.kill()


def test_top_shows_sorts_filters_and_ends(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, client = busy_daemon
    client.register("reached", 1, batches.produce(["orders-4"], offsets=[42]))
    terminal = PseudoTerminal("top", "--address", daemon.address)
    try:
        terminal.until(SHOWN)
        terminal.until("orders-3@42")
        terminal.until("3 pending")
        place = len(terminal.written)
        terminal.press("/")
        terminal.until("only rows", place)
        terminal.press("orders\r")
        terminal.until("waits: 2", place)
        place = len(terminal.written)
        terminal.press("2")
        terminal.until("hot names: 2", place)
        place = len(terminal.written)
        terminal.press("3")
        terminal.until("just ended: 0", place)
        client.advance("orders-4", high_watermark=42)
        terminal.until("satisfied", place)
        terminal.press("q")
        assert terminal.end() == Exit.OK
        assert "\x1b]0;x" not in terminal.written
        assert "\u202e" not in terminal.written
        assert "\x1b[?1049l" in terminal.written[place:], "the screen is given back"
    finally:
        terminal.kill()


def test_top_finds_the_urgent_waits_among_thousands(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, client = busy_daemon
    bulk, urgent = ([f"{kind}-{number}" for number in range(count)] for kind, count in KINDS.items())
    for first, topics, timeout_ms in ((1, bulk, 3_600_000), (1 + len(bulk), urgent, 300_000)):
        places, count = range(len(topics)), len(topics)
        batch = batches.produce(topics, indexes=places, offsets=[1] * count, timeouts_ms=[timeout_ms])
        client.register("thousands", first, batch)
    terminal = PseudoTerminal("top", "--address", daemon.address)
    try:
        terminal.until("of 4,007")
        terminal.until("urgent-4@1")
        place = len(terminal.written)
        terminal.press("/")
        terminal.until("only rows", place)
        terminal.press("bulk-3999\r")
        terminal.until("waits: 1 of 4,007", place)
    finally:
        terminal.kill()
    listed = purgatory("ls", "--sort", "remaining", "--limit", "5", "--json", address=daemon.address)
    first_names = [json.loads(line)["items"][0]["name"] for line in listed.stdout.splitlines()]
    assert sorted(first_names) == urgent
    client.close_session("thousands")


def test_top_waits_for_a_daemon_that_is_away(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, _ = busy_daemon
    terminal = PseudoTerminal("top", "--address", daemon.address)
    try:
        terminal.until("orders-3@42")
        daemon.kill()
        terminal.until("does not answer")
        os.killpg(terminal.process.pid, signal.SIGTERM)
        terminal.end()
    finally:
        terminal.kill()


def test_top_without_textual_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError(name='textual')", "utf-8")
    terminal = PseudoTerminal("top", packages=str(tmp_path))
    try:
        assert terminal.end() == Exit.ERROR
        assert "pip install 'purgatory-waits[top]'" in terminal.written
    finally:
        terminal.kill()
