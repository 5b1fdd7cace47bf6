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
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pyte
import pytest
from purgatory_client import Client, batches

from purgatory import __version__
from purgatory.cli.exit_codes import Exit
from tests.client.cli.test_commands import PROGRAM, purgatory
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.programs import run_program

PAGE = Path(__file__).parent / "pages" / "top.txt"
EVIL = "\x1b]0;x\x07\u202e[red]"
KINDS = {"bulk": 4_000, "urgent": 5}
SHOWN = r"\x1b]0;x\x07\u202e"


class PseudoTerminal:
    """A program in a pseudo-terminal, and everything that it has written there."""

    def __init__(self, *arguments: str, lines: int = 24, packages: str = "") -> None:
        self._size: Final = (80, lines)
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
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

        def is_shown() -> bool:
            assert self.process.poll() is None or text in plain(self.written[since:]), self.written
            return text in plain(self.written[since:])

        wait_until(is_shown, lambda: f"{text!r} is shown; last: {plain(self.written[-3_000:])!r}")

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    @property
    def screen(self) -> str:
        shown = pyte.Screen(*self._size)
        pyte.Stream(shown).feed(self.written)
        return "\n".join(line.rstrip() for line in shown.display).rstrip() + "\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


def test_top_in_a_terminal(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    """The whole screen of `top`: counts, the waits that expire first, and the keys. Times are left out."""
    daemon, _ = busy_daemon
    expected = PAGE.read_text("utf-8")
    with PseudoTerminal("top", "--address", daemon.address) as terminal:
        wait_until(lambda: without_times(terminal.screen) == expected, lambda: terminal.screen)
        terminal.press("q")
        assert terminal.end() == Exit.OK


def test_top_shows_sorts_filters_and_ends(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, client = busy_daemon
    client.register("reached", 1, batches.produce(["orders-4"], offsets=[42]))
    with PseudoTerminal("top", "--address", daemon.address) as terminal:
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


def test_top_finds_the_urgent_waits_among_thousands(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, client = busy_daemon
    bulk, urgent = ([f"{kind}-{number}" for number in range(count)] for kind, count in KINDS.items())
    for first, topics, timeout_ms in ((1, bulk, 3_600_000), (1 + len(bulk), urgent, 300_000)):
        places, count = range(len(topics)), len(topics)
        batch = batches.produce(topics, indexes=places, offsets=[1] * count, timeouts_ms=[timeout_ms])
        client.register("thousands", first, batch)
    with PseudoTerminal("top", "--address", daemon.address) as terminal:
        terminal.until("of 4,007")
        terminal.until("urgent-4@1")
        place = len(terminal.written)
        terminal.press("/")
        terminal.until("only rows", place)
        terminal.press("bulk-3999\r")
        terminal.until("waits: 1 of 4,007", place)
    listed = purgatory("ls", "--sort", "remaining", "--limit", "5", "--json", address=daemon.address)
    first_names = [json.loads(line)["items"][0]["name"] for line in listed.stdout.splitlines()]
    assert sorted(first_names) == urgent
    client.close_session("thousands")


def test_top_in_a_pipe_prints_one_snapshot(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, _ = busy_daemon
    answer = purgatory("top", address=daemon.address)
    assert (answer.returncode, answer.stderr) == (Exit.OK, "")
    assert "\x1b" not in answer.stdout
    lines = answer.stdout.splitlines()
    assert lines[0] == f"purgatory {__version__}: 2 pending"
    assert lines[2] == "waits: 2, all:"
    assert [line.split()[0] for line in lines[4:]] == ["busy", "busy"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [("top", Exit.OK, "2 pending"), ("signal closed --value-file -", Exit.USAGE, "stdin is closed")],
)
def test_a_closed_stdin(busy_daemon: tuple[DaemonProcess, Client], arguments: str, code: Exit, said: str) -> None:
    """`top` prints its snapshot, and a value that cannot be read is a usage error."""
    command = [*PROGRAM, *arguments.split(), "--address", busy_daemon[0].address]
    answer = run_program(["sh", "-c", 'exec "$@" <&-', "sh", *command], code=None, env=environment())
    assert (answer.returncode, said in answer.stdout + answer.stderr) == (code, True), answer.stderr


def without_times(shown: str) -> str:
    """The screen without the daemon's version, and with durations replaced by a word of fixed length."""
    return re.sub(r"\d[\d.]*(?:ms|s|m)(?: \d+s)? *", "TIME    ", shown.replace(__version__, "VERSION"))


def test_top_waits_for_a_daemon_that_is_away(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    daemon, _ = busy_daemon
    with PseudoTerminal("top", "--address", daemon.address) as terminal:
        terminal.until("orders-3@42")
        daemon.kill()
        terminal.until("does not answer")
        os.killpg(terminal.process.pid, signal.SIGTERM)
        terminal.end()


def test_top_without_textual_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError(name='textual')", "utf-8")
    with PseudoTerminal("top", packages=str(tmp_path)) as terminal:
        assert terminal.end() == Exit.ERROR
        assert "pip install 'purgatory-waits[top]'" in terminal.written
