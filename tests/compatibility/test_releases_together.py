"""Clients and daemons of the last release and of this tree, in each combination; and commands, options and metrics that
the last release had, and that this tree still has.
"""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.compatibility import scenario, unpack_release
from tests.compatibility.released_clients import RELEASED_CLIENTS
from tests.kit.daemon import EXECUTE, DaemonProcess
from tests.kit.eventually import PATIENCE_S
from tests.kit.programs import run_program
from tests.kit.proxy import FaultyProxy, proxy_thread
from tests.strangers.client_builds import BUILT
from tests.strangers.test_clients import BUILDS, WAITS, advance, advance_and_cut, as_expected, expected_lines, started

pytestmark = pytest.mark.slow  # programs, of which some are compiled

PROGRAM: Final = Path(scenario.__file__)
RELEASES: Final = ("last", "this")
GONE: Final = frozenset[str]()
"""Options, commands and metrics of the last release that were removed as docs/compatibility.md allows."""
COMMAND: Final = re.compile(r"^  ([a-z][a-z-]*)  ", re.MULTILINE)
"""A command in the help of a program or of a group of commands."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PYTHONPATH of each release."""
    environment = unpack_release(folder := tmp_path_factory.mktemp("last"))
    program = [sys.executable, "-c", "import purgatory; print(purgatory.__file__)"]
    assert run_program(program, cwd=folder.parent, env=environment).stdout.startswith(str(folder))
    return {"last": environment["PYTHONPATH"], "this": EXECUTE["PYTHONPATH"]}


async def cut(proxy: FaultyProxy) -> None:
    assert proxy.drop_all() > 0


@pytest.fixture(scope="module")
def daemons(paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DaemonProcess]]:
    """A daemon of each release."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("daemons")
        yield {
            release: stack.enter_context(DaemonProcess(folder / release, environment={"PYTHONPATH": path}))
            for release, path in paths.items()
        }


@pytest.mark.xdist_group("compatibility")
@pytest.mark.parametrize("daemon", RELEASES)
@pytest.mark.parametrize("client", RELEASES)
def test_client_and_daemon_of_two_releases_work_together(
    client: str, daemon: str, daemons: dict[str, DaemonProcess], paths: dict[str, str], tmp_path: Path
) -> None:
    """A wait is satisfied, one expires, a signal has a value, and a wait survives a lost connection."""
    with proxy_thread(daemons[daemon].address) as (proxy, loop):
        command = [sys.executable, str(PROGRAM), proxy.address, f"{client}-{daemon}"]
        environment = {"PYTHONPATH": paths[client], "PYTHONSAFEPATH": "1"}  # not the package next to the program
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            lines = []
            for line in program.stdout:
                lines.append(line.split())
                if line.startswith("pending"):
                    loop.run(cut(proxy))
                    advance(daemons[daemon], f"{client}-{daemon}", 7)
            assert program.wait(PATIENCE_S) == 0
    imported = lines.pop(3)[1]
    assert imported.startswith(paths[client].split(os.pathsep)[0])
    assert lines == [["satisfied", "True", "0"], ["expired", "EXPIRED"], ["value", "artifact-7"], ["resumed", "True"]]


@pytest.mark.xdist_group("strangers")
@pytest.mark.parametrize("daemon", RELEASES)
@pytest.mark.parametrize("client", RELEASES)
@pytest.mark.parametrize("language", BUILDS)
def test_other_client_and_daemon_of_two_releases_work_together(
    language: str, client: str, daemon: str, daemons: dict[str, DaemonProcess], tmp_path: Path
) -> None:
    """In Go, Java and TypeScript: each wait ends exactly once over a connection that is cut."""
    BUILT.mkdir(parents=True, exist_ok=True)
    command, topic = {"last": RELEASED_CLIENTS, "this": BUILDS}[client][language](), f"{language}-{client}-{daemon}"
    with (
        proxy_thread(daemons[daemon].address) as (proxy, thread),
        started(command, proxy.address, WAITS, tmp_path, topic) as ended,
    ):
        advance_and_cut(lambda count: thread.run(proxy.drop_after(count)), daemons[daemon], topic)
        assert as_expected(ended()) == expected_lines(WAITS)


def offered(module: str, path: str, words: Sequence[str] = ()) -> Iterator[str]:
    """All commands of a program with their options, as its help shows them."""
    shown = run_program([sys.executable, "-m", module, *words, "--help"], env={"PYTHONPATH": path, "COLUMNS": "100"})
    yield from (" ".join((module, *words, option)) for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown.stdout))
    for command in COMMAND.findall(shown.stdout):
        yield from offered(module, path, (*words, command))


@pytest.mark.xdist_group("compatibility")
@pytest.mark.parametrize("module", ["purgatory", "purgatory_connectors"])
def test_commands_and_options_of_the_last_release_are_still_there(module: str, paths: dict[str, str]) -> None:
    last, this = (set(offered(module, paths[release])) for release in RELEASES)
    assert len(last) > 20
    assert last - this <= GONE


@pytest.mark.xdist_group("compatibility")
def test_metrics_of_the_last_release_are_still_there(daemons: dict[str, DaemonProcess]) -> None:
    names = {}
    for release, daemon in daemons.items():
        with urllib.request.urlopen(f"http://{daemon.http_address}/metrics", timeout=PATIENCE_S) as page:
            names[release] = set(re.findall(r"^# TYPE (\w+)", page.read().decode(), re.MULTILINE))
    assert len(names["last"]) > 20
    assert names["last"] - names["this"] <= GONE
