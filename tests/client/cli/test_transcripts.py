"""Sessions at a shell (`transcripts/*.txt`): commands, and below each what it prints.

"! " begins a line of stderr, and "[11]" is an exit code other than 0. A command that ends in "&" runs in the
background; `fg` waits for its end. On stdout, T stands for a duration, and N for a measured number.
`python -m tests.client.cli.test_transcripts` records the output of all transcripts again.
"""

import logging
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from purgatory_client import Client

from tests.client.cli.test_commands import Background, purgatory
from tests.docs.pages import DURATION
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import wait_until

FILES: Final = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
NUMBER: Final = re.compile(r"\d[\d,]*\.\d+|[\d,]+(?= per second)|(?<=load-)[0-9a-f]{12}")


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
        if not line.startswith(("# ", "$ ")):
            continue
        found.append(line)
        if line == "$ fg":
            found += shown(*background.pop().end())
        elif line.endswith(" &"):
            background.append(waiting(line, address))
        elif line.startswith("$ "):
            answer = purgatory(*shlex.split(line)[1:], address=address)
            found += shown(answer.returncode, answer.stdout, answer.stderr)
    return found


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
def test_commands_print_what_is_recorded(name: str, lines: list[str], shared_daemon: DaemonProcess) -> None:
    assert played(lines, shared_daemon.address) == lines, name


if __name__ == "__main__":
    logging.disable()  # gRPC's asyncio layer logs that the event loops of earlier commands are closed
    with tempfile.TemporaryDirectory() as folder, DaemonProcess(Path(folder)) as daemon:
        for written in FILES:
            parts = ["\n".join([f"== {name}", *played(lines, daemon.address)]) for name, lines in transcripts(written)]
            written.write_text("\n\n".join(parts) + "\n", "utf-8")
