"""What the command line imports, because imports are most of the time that a short command takes."""

import sys
from typing import Final

from purgatory.cli.app import SUMMARIES
from purgatory.cli.exit_codes import Exit
from tests.client.cli.test_commands import purgatory
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.programs import run_program

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
