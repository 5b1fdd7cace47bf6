"""Sessions at a shell (`transcripts/*.txt`): commands, and below each what it prints.

"! " begins a line of stderr, and "[11]" is an exit code other than 0. A command that ends in "&" runs in the
background; `fg` waits for its end. Below one that ends in "<Tab>" is what bash offers there. On stdout, T stands for a
duration, and N for a measured number. A line "> tool {...}" is a call by an agent, as `purgatory mcp` answers it.
`python -m tests.client.cli.test_transcripts` records the output of all transcripts again.
"""

import asyncio
import json
import logging
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from mcp import Client as Agent
from purgatory_client import AsyncClient, Client

from purgatory.cli import completion
from purgatory.cli.mcp_server import make_server
from tests.client.cli.test_commands import Background, purgatory
from tests.client.cli.test_completion import completed
from tests.docs.pages import DURATION
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, wait_until

FILES: Final = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
NUMBER: Final = re.compile(r'\d[\d,]*\.\d+|[\d,]+(?= per second)|(?<=load-)[0-9a-f]{12}|(?<="id": )\d+')


def transcripts(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The name and the lines of each transcript of a file."""
    for part in path.read_text("utf-8").split("== ")[1:]:
        name, *lines = part.rstrip().splitlines()
        yield name, lines


def played(lines: list[str], address: str) -> list[str]:
    """The comments and commands of a transcript, and below each command what it prints now."""
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
    """What a command has printed, without what differs from run to run."""
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


if __name__ == "__main__":
    logging.disable()  # gRPC's asyncio layer logs that the event loops of earlier commands are closed
    with tempfile.TemporaryDirectory() as folder, DaemonProcess(Path(folder)) as daemon:
        for written in FILES:
            parts = ["\n".join([f"== {name}", *played(lines, daemon.address)]) for name, lines in transcripts(written)]
            written.write_text("\n\n".join(parts) + "\n", "utf-8")
