"""What a terminal of 80 columns shows for the help pages and `top`, compared with the files in `pages`.

`python -m tests.client.cli.test_pages` writes the files of the help pages again.
"""

import re
import time
from pathlib import Path
from typing import Final

import pyte
import pytest
from purgatory_client import Client

from purgatory import __version__
from purgatory.cli.exit_codes import MEANINGS, Exit
from tests.client.cli.test_commands import PROGRAM, purgatory
from tests.client.cli.test_top import PseudoTerminal, busy_daemon
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S
from tests.kit.programs import run_program

__all__ = ["busy_daemon"]

PAGES: Final = Path(__file__).parent / "pages"
HELP: Final = {
    "help": ["--help"],
    "wait": ["wait", "--help"],
    "advance": ["advance", "--help"],
    "exit-codes": ["help", "exit-codes"],
}
LINES: Final = 200


def screen(written: str, lines: int) -> str:
    """What a terminal of 80 columns shows after this was written to it."""
    shown = pyte.Screen(80, lines)
    pyte.Stream(shown).feed(written)
    return "\n".join(line.rstrip() for line in shown.display).rstrip() + "\n"


def page(*arguments: str) -> str:
    """What `purgatory` shows with these arguments."""
    terminal = PseudoTerminal(*arguments, lines=LINES)
    try:
        assert terminal.end() == Exit.OK
        return screen(terminal.written, LINES)
    finally:
        terminal.kill()


@pytest.mark.parametrize("name", HELP)
def test_help_page_is_as_recorded(name: str) -> None:
    assert page(*HELP[name]) == (PAGES / f"{name}.txt").read_text("utf-8")


def test_help_of_a_command_is_its_own_page() -> None:
    assert purgatory("help", "wait").stdout == purgatory("wait", "--help").stdout
    assert purgatory("help").stdout == purgatory("--help").stdout
    assert purgatory("help", "nonsense").returncode == Exit.USAGE


def test_version_is_printed_whatever_follows() -> None:
    answer = purgatory("--version", "nonsense")
    assert (answer.returncode, answer.stdout) == (Exit.OK, f"purgatory {__version__}\n")


def test_exit_codes_are_on_their_page_and_in_the_docs() -> None:
    listed = purgatory("help", "exit-codes").stdout
    documented = (Path(__file__).parents[3] / "docs" / "cli.md").read_text("utf-8")
    helped = " ".join((purgatory("wait", "--help").stdout + purgatory("--help").stdout).split())
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>3}  {meaning}\n" in listed
        assert f"| {code.value} | {meaning} |" in documented
        assert meaning not in helped
    assert set(MEANINGS) == set(Exit)


def test_top_in_a_terminal(busy_daemon: tuple[DaemonProcess, Client]) -> None:
    """The whole screen of `top`: counts, the waits that expire first, and the keys. Times are left out."""
    daemon, _ = busy_daemon
    expected = (PAGES / "top.txt").read_text("utf-8")
    terminal = PseudoTerminal("top", "--address", daemon.address)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (shown := without_times(screen(terminal.written, 24))) != expected:
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        terminal.press("q")
        assert terminal.end() == Exit.OK
    finally:
        terminal.kill()


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


if __name__ == "__main__":
    for written, given in HELP.items():
        (PAGES / f"{written}.txt").write_text(page(*given), "utf-8")
