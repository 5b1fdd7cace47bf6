"""The fenced blocks of the documentation: their kinds, and how a session in a shell is played."""

import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.kit.daemon import daemon_environment
from tests.kit.programs import run_program

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SECONDS_MAX: Final = 600
FENCE: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DURATION: Final = re.compile(r"\b\d[\d,]*(?:\.\d+)? ?(?:ms|s|m|h)\b(?: ?\d+ ?(?:s|m)\b)?")
VARIABLE: Final = re.compile(r"\d[\d,]*\.\d+|\b\d[\d,]{4,}|\d+(?= per second)|load-[0-9a-f]{12}")
"""Rates, positions in a log, and random names: they differ from run to run, as durations do."""


FUNCTIONS: Final = f"""
purgatory() {{ {shlex.quote(sys.executable)} -m purgatory "$@"; }}
until_pending() {{ until purgatory ls --json | grep -q .; do sleep 0.05; done; }}
until_serving() {{ until purgatory status > /dev/null 2>&1; do sleep 0.05; done; }}
"""
"""In a shell of the tests, `purgatory` is this tree's."""
WHERE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("where_blocks_run.toml").read_text("utf-8"))


class Block(NamedTuple):
    """A fenced block: its page, the first word after the fence, the title (a file to save it as), and the text."""

    page: str
    language: str
    title: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a `console` block, each with its continuation lines."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]

    @property
    def output(self) -> list[str]:
        """The output in a `console` block."""
        return [line for line in self.text.splitlines() if not line.startswith("$ ")]


@functools.cache
def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        for information, text in FENCE.findall(page.read_text("utf-8")):
            language, _, rest = information.partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            found.append(Block(str(page.relative_to(ROOT)), language, title[1] if title else "", text))
    return found


def texts(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in a language."""
    return [block.text for block in blocks() if (block.page, block.language) == (page, language)]


def session_commands() -> list[str]:
    """The different commands of all `console` blocks, without comments."""
    found = [command for block in blocks() if block.language == "console" for command in block.commands]
    return list(dict.fromkeys(re.sub(r"\s+# .*", "", command) for command in found))


def commands_about(*words: str) -> list[str]:
    """The commands of sessions that contain one of the words, except those that start servers or install packages."""
    left_out = ("purgatory serve", "purgatory-", "pip ", "pytest ")
    return [one for one in session_commands() if any(word in one for word in words) and not one.startswith(left_out)]


def sources_about(scheme: str, address: str) -> list[str]:
    """The `--source` options of the pages with this scheme, and with this address instead of theirs."""
    served = [shlex.split(one) for one in session_commands() if one.startswith("purgatory serve")]
    uris = dict.fromkeys(word for words in served for word in words if word.startswith(f"{scheme}://"))
    replaced = dict.fromkeys(re.sub(r"://[^/?]+", f"://{address}", uri) for uri in uris)
    return [word for uri in replaced for word in ("--source", uri)]


def shell(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script in bash, with `FUNCTIONS`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = daemon_environment({"PATH": path, **environment})
    command = ["bash", "-c", FUNCTIONS + script]
    return run_program(command, code=None, cwd=folder, env=environment, timeout_s=SECONDS_MAX)


def play(before: str, commands: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """Run the commands of a session in turn, in one shell; returns its output in a form that can be compared.

    A command in the background is given the time that a reader takes: a wait is pending before the next command, and a
    daemon answers. A daemon is stopped at the end.
    """
    script = f"set -m\n{before}\n"
    for command in commands:
        script += f"{command}\n"
        if command.endswith("&"):
            script += f"{'until_serving' if ' serve ' in command else 'until_pending'}\n"
    done = shell(script + "jobs > /dev/null; kill %?serve 2> /dev/null; wait\n", folder, environment)
    return comparable(done.stdout.splitlines())


def comparable(lines: list[str]) -> list[str]:
    """The lines without figures that differ from run to run and without alignment, sorted, since two commands that
    print at once have no order.
    """
    plain = (VARIABLE.sub("N", DURATION.sub("T", line)).replace(" (T late)", "") for line in lines)
    return sorted(" ".join(line.split()) for line in plain)
