"""The interface of a daemon and its commands to other programs: fields of JSON over HTTP and of `--json`, statuses,
exit codes and settings with their defaults. The last release and this tree get the same requests; nothing may be gone.
"""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import pytest

from purgatory.cli.app import SUMMARIES, load
from tests.compatibility.test_releases_together import RELEASES, daemons, paths
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S
from tests.kit.programs import run_program

__all__ = ["daemons", "paths"]  # fixtures

EXCHANGES: Final = Path(__file__).with_name("exchanges.txt")
CHANGED: Final[dict[str, str]] = {}
"""Changes since the last release that docs/compatibility.md allows, each with its line in CHANGELOG.md."""
AT_TIMES: Final = re.compile(r"\.(\w+Ms|pacePerSecond): \w+$")
"""Fields over HTTP that are left out if they are 0, or not known yet. `buf breaking` compares their names."""
NEED_A_SOURCE: Final = {"caught-up", "lag", "ready"}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("compatibility")]


def fields(value: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Each field with its type, as `partitions[].errorCode: int`. Codes of errors are whole."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from fields(one, f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from fields(one, f"{path}[]")
    else:
        yield f"{path}: {value if path == '.code' else type(value).__name__}"


def documents(text: str) -> Iterator[Any]:
    """The JSON documents in an answer: one, or one on each line. Other texts are for people."""
    for part in [text] if text.startswith(("{\n", "[\n")) else text.splitlines():
        if part.startswith(("{", "[")):
            yield json.loads(part)


def command(text: str, address: str) -> list[str]:
    return [sys.executable, "-m", "purgatory", *text.split(), "--json", "--address", address]


def call(line: str, http_address: str) -> tuple[int, str]:
    """The status and body of a call over HTTP."""
    name, _, body = line.partition(" ")
    path = name if name.startswith("/") else f"/purgatory.v1.PurgatoryService/{name}"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{http_address}{path}", body.encode() if body else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def play(daemon: DaemonProcess, path: str) -> dict[str, set[str]]:
    """For each line its fields, with the status or exit code."""
    played: dict[str, set[str]] = {}
    environment, background = {"PYTHONPATH": path}, dict[str, subprocess.Popen[str]]()

    def note(line: str, what: str, code: int | None, text: str) -> None:
        played[line] = {f"{what} {code}", *(one for found in documents(text) for one in fields(found))}

    for line in EXCHANGES.read_text("utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "&":
            background[line] = subprocess.Popen(
                command(rest, daemon.address), env=environment, stdout=subprocess.PIPE, text=True
            )
        elif mark == "$":
            ran = run_program(command(rest, daemon.address), code=None, env=environment)
            note(line, "exit code", ran.returncode, ran.stdout)
        elif line and mark != "#":
            note(line, "status", *call(line, daemon.http_address))
    for line, process in background.items():
        while process.poll() is None:  # until it sees one of these
            call('Wait {"operation": {"timeoutMs": "1", "signal": {"keys": [{"key": "seen"}]}}}', daemon.http_address)
            time.sleep(0.1)
        note(line, "exit code", process.returncode, process.communicate()[0])
    return played


def is_gone(field: str, now: set[str]) -> bool:
    """Whether the field no longer exists. One that is null in either release may have any type."""
    name = field.rpartition(":")[0]
    types = {one for one in now if one.rpartition(":")[0] == name}
    is_null = field.endswith(": NoneType") or f"{name}: NoneType" in types
    return field not in now and not (types and is_null) and not AT_TIMES.search(field)


def test_fields_of_the_last_release_are_still_there(daemons: dict[str, DaemonProcess], paths: dict[str, str]) -> None:
    """They have the same types, statuses, exit codes and error codes."""
    last, this = (play(daemons[release], paths[release]) for release in RELEASES)
    gone = {f"{line}: {one}" for line, found in last.items() for one in found if is_gone(one, this[line])}
    assert gone <= CHANGED.keys()
    assert sum(map(len, last.values())) > 300


def test_fields_of_each_command_with_json_are_compared() -> None:
    with_json = {name for name in SUMMARIES if any("--json" in one.opts for one in load(name).params)}
    asked = set(re.findall(r"^[$&] ([a-z-]+)", EXCHANGES.read_text("utf-8"), re.MULTILINE))
    assert with_json == asked | NEED_A_SOURCE


def settings(path: str) -> set[str]:
    """Every setting with its default, as `grpc.address = "127.0.0.1:7440"`."""
    shown = run_program([sys.executable, "-m", "purgatory", "serve", "--print-config"], env={"PYTHONPATH": path}).stdout
    found, group = set[str](), ""
    for line in shown.splitlines():
        if line.startswith("["):
            group = f"{line[1:-1]}."
        elif " = " in line:
            found.add(f"{group}{line.removesuffix('  # default')}")
    return found


def test_settings_of_the_last_release_have_the_same_defaults(paths: dict[str, str]) -> None:
    last, this = (settings(paths[release]) for release in RELEASES)
    assert len(last) > 40
    assert last - this <= CHANGED.keys()
