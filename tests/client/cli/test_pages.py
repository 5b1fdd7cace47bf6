"""The help pages on a terminal of 80 columns, compared with the files in `pages`, and the imports of commands.

Imports are most of the time that a short command takes.

Sessions at a shell (`transcripts/*.txt`): commands, each followed by its output.

"! " begins a line of stderr, and "[11]" is an exit code other than 0. A command that ends in "&" runs in the
background; `fg` waits for its end. One that ends in "<Tab>" is followed by bash's completions. On stdout, T stands for
a duration, and N for a measured number. A line "> tool {...}" is a call by an agent, as `purgatory mcp` answers it.
The completions of real shells are in transcripts/completion.txt.

`python -m tests.client.cli.test_pages` writes the pages and the output of all transcripts again.
"""

import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from mcp import Client as Agent
from purgatory_client import AsyncClient, Client

from purgatory import __version__
from purgatory.cli import completion
from purgatory.cli.app import SUMMARIES, app
from purgatory.cli.exit_codes import MEANINGS, Exit
from purgatory.cli.mcp_server import make_server
from tests.client.cli.test_commands import Background, purgatory
from tests.client.cli.test_top import PseudoTerminal
from tests.client.test_blocking import environment
from tests.docs.pages import DURATION
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.programs import run_program, skip_unless_required

PAGES: Final = Path(__file__).parent / "pages"
HELP: Final = {
    "help": ["--help"],
    "wait": ["wait", "--help"],
    "advance": ["advance", "--help"],
    "exit-codes": ["help", "exit-codes"],
}
LINES: Final = 200


def page(*arguments: str) -> str:
    """The output of `purgatory` with these arguments."""
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


FILES: Final = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
NUMBER: Final = re.compile(r'\d[\d,]*\.\d+|[\d,]+(?= per second)|(?<=load-)[0-9a-f]{12}|(?<="id": )\d+')


def transcripts(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The name and the lines of each transcript of a file."""
    for part in path.read_text("utf-8").split("== ")[1:]:
        name, *lines = part.rstrip().splitlines()
        yield name, lines


def played(lines: list[str], address: str) -> list[str]:
    """The comments and commands of a transcript, and below each command its current output."""
    found = []
    background: list[Background] = []
    for line in lines:
        if not line.startswith(("# ", "$ ", "> ")):
            continue
        found.append(line)
        if line.startswith("> "):
            found += asyncio.run(called(line, address))
        elif line.endswith("<Tab>"):
            found += completed(line.removeprefix("$ ").removesuffix("<Tab>"), address)
        elif line == "$ fg":
            found += shown(*background.pop().end())
        elif line.endswith(" &"):
            background.append(waiting(line, address))
        elif line.startswith("$ "):
            answer = purgatory(*shlex.split(line)[1:], address=address)
            found += shown(answer.returncode, answer.stdout, answer.stderr)
    return found


async def called(line: str, address: str) -> list[str]:
    """The answer of a tool, as JSON, or why it refused the call."""
    _, tool, arguments = line.split(" ", 2)
    async with AsyncClient(address) as client, Agent(make_server(client)) as agent:
        result = await agent.call_tool(tool, json.loads(arguments))
    [text] = result.content
    assert text.type == "text"
    if result.is_error:
        # Pydantic names a page of its own version.
        return [f"! {line}".rstrip() for line in text.text.splitlines() if "https://" not in line]
    return shown(0, json.dumps(result.structured_content, indent=2), "")


def waiting(line: str, address: str) -> Background:
    """A command in the background, once its wait is pending."""
    with Client(address) as client:
        before = len(list(client.operations()))
        command = Background(address, *shlex.split(line)[1:-1])
        wait_until(lambda: len(list(client.operations())) > before, f"pending: {line}")
    return command


def shown(code: int, out: str, err: str) -> list[str]:
    """The output of a command, without the parts that differ from run to run."""
    lines = [NUMBER.sub("N", DURATION.sub("T", line)).replace(" (T late)", "").rstrip() for line in out.splitlines()]
    return [*lines, *(f"! {line}".rstrip() for line in err.splitlines()), *([f"[{code}]"] if code else [])]


@pytest.mark.parametrize(
    ("name", "lines"), [pytest.param(*one, id=one[0]) for path in FILES for one in transcripts(path)]
)
def test_commands_print_what_is_recorded(
    name: str, lines: list[str], shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "PATIENCE_S", PATIENCE_S)  # the machine may be busy
    assert played(lines, shared_daemon.address) == lines, name


def completed(words: str, address: str = "127.0.0.1:1") -> list[str]:
    """The completions of bash for these words; the last one is incomplete, or empty after a space."""
    variables = {
        "_PURGATORY_COMPLETE": "bash_complete",
        "COMP_WORDS": f"purgatory {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "PURGATORY_ADDRESS": address,
    }
    done = CliRunner().invoke(app, [], prog_name="purgatory", env=variables)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_completion_without_a_daemon_prints_no_message() -> None:
    assert completed("show ") == []
    assert completed("show ", "http://127.0.0.1:7441") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shared_daemon: DaemonProcess, shell: str, tmp_path: Path) -> None:
    """A real shell completes `purgatory st` and `purgatory ls --pa`, and bash the names of the daemon. Zsh's completion
    function exists only in a terminal, so for zsh the arguments passed to it are checked.
    """
    if shutil.which(shell) is None:
        skip_unless_required("SHELLS", f"no {shell} found; apt install {shell}")
    with Client(shared_daemon.address) as client:
        client.advance("orders-12", high_watermark=1)
    command = tmp_path / "purgatory"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m purgatory "$@"\n', "utf-8")
    command.chmod(0o755)
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PURGATORY_ADDRESS": shared_daemon.address}
    program = Path(__file__).with_name(f"completion.{shell}")
    done = run_program([shell, str(program)], env={**environment(), **variables})
    assert sorted(done.stdout.splitlines()) == ["--partition", "--partitions", "status"], done.stderr


def test_each_of_the_wrong_command_lines_prints_one_line() -> None:
    text = next(path for path in FILES if path.stem == "usage").read_text("utf-8")
    assert len(re.findall(r"^\$ .*\n! .*\n\[\d+\]$", text, re.MULTILINE)) == text.count("\n! ") >= 80


if __name__ == "__main__":
    for name, given in HELP.items():
        (PAGES / f"{name}.txt").write_text(page(*given), "utf-8")
    logging.disable()  # gRPC's asyncio layer logs that the event loops of earlier commands are closed
    with tempfile.TemporaryDirectory() as folder, DaemonProcess(Path(folder)) as daemon:
        for written in FILES:
            parts = ["\n".join([f"== {name}", *played(lines, daemon.address)]) for name, lines in transcripts(written)]
            written.write_text("\n\n".join(parts) + "\n", "utf-8")
