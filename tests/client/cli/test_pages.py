"""What a terminal of 80 columns shows for the help pages, compared with the files in `pages`, and what commands import.

`python -m tests.client.cli.test_pages` writes the pages again. Imports are most of the time that a short command takes.
"""

import sys
from pathlib import Path
from typing import Final

import pytest

from purgatory import __version__
from purgatory.cli.app import SUMMARIES
from purgatory.cli.exit_codes import MEANINGS, Exit
from tests.client.cli.test_commands import purgatory
from tests.client.cli.test_top import PseudoTerminal
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.programs import run_program

PAGES: Final = Path(__file__).parent / "pages"
HELP: Final = {
    "help": ["--help"],
    "wait": ["wait", "--help"],
    "advance": ["advance", "--help"],
    "exit-codes": ["help", "exit-codes"],
}
LINES: Final = 200


def page(*arguments: str) -> str:
    """What `purgatory` shows with these arguments."""
    with PseudoTerminal(*arguments, lines=LINES) as terminal:
        assert terminal.end() == Exit.OK
        return terminal.screen


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


# Imports.


LISTING: Final = """
import atexit, sys
from purgatory.__main__ import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""


def imported(*arguments: str, **variables: str) -> set[str]:
    """The modules that `purgatory` imports with these arguments."""
    done = run_program([sys.executable, "-c", LISTING, *arguments], env={**environment(), **variables})
    return set(done.stderr.split())


def test_help_imports_no_command() -> None:
    """Neither the page of all commands nor the completion of their names imports client, gRPC, rich or a command."""
    words = {"_PURGATORY_COMPLETE": "bash_complete", "COMP_WORDS": "purgatory l", "COMP_CWORD": "1"}
    for modules in (imported("--help"), imported("--version"), imported(**words)):
        assert "purgatory.cli.app" in modules
        assert not {"grpc", "purgatory_client", "purgatory.cli.operations", "rich", "pydantic"} & modules


def test_a_command_imports_only_its_module(shared_daemon: DaemonProcess) -> None:
    """`ls` imports no other command, no optional package, no outbox, and nothing that only help pages need."""
    modules = imported("ls", "--address", shared_daemon.address)
    assert {"purgatory.cli.operations", "purgatory_client.aio"} <= modules
    others = {f"purgatory.cli.{name}" for name in ("advance", "mcp_server", "tail", "top", "wait")}
    outbox = {f"purgatory_client.outbox.{name}" for name in ("outbox_file", "outbox_gate")}
    assert not (others | outbox | {"mcp", "textual", "pydantic"}) & modules


def test_each_command_of_the_table_has_its_help() -> None:
    assert {name: purgatory(name, "--help").returncode for name in SUMMARIES} == dict.fromkeys(SUMMARIES, Exit.OK)


if __name__ == "__main__":
    for written, given in HELP.items():
        (PAGES / f"{written}.txt").write_text(page(*given), "utf-8")
