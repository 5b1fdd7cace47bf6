"""Clients and daemons of the last release and of this tree, in each combination."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.compatibility import scenario, unpack_release
from tests.kit.daemon import EXECUTE, DaemonProcess
from tests.kit.eventually import PATIENCE_S
from tests.kit.programs import run_program
from tests.kit.proxy import FaultyProxy, proxy_thread

PROGRAM: Final = Path(scenario.__file__)
RELEASES: Final = ("last", "this")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PYTHONPATH of each release."""
    environment = unpack_release(folder := tmp_path_factory.mktemp("last"))
    program = [sys.executable, "-c", "import purgatory; print(purgatory.__file__)"]
    assert run_program(program, cwd=folder.parent, env=environment).stdout.startswith(str(folder))
    return {"last": environment["PYTHONPATH"], "this": EXECUTE["PYTHONPATH"]}


async def cut(proxy: FaultyProxy) -> None:
    assert proxy.drop_all() > 0


@pytest.fixture(scope="module", params=RELEASES)
def daemon(
    request: pytest.FixtureRequest, paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, DaemonProcess]]:
    """A daemon of each release, and whose it is."""
    folder = tmp_path_factory.mktemp("daemon")
    with DaemonProcess(folder, environment={"PYTHONPATH": paths[request.param]}) as daemon:
        yield request.param, daemon


@pytest.mark.slow  # programs
@pytest.mark.xdist_group("compatibility")
@pytest.mark.parametrize("client", RELEASES)
def test_client_and_daemon_of_two_releases_work_together(
    client: str, daemon: tuple[str, DaemonProcess], paths: dict[str, str], tmp_path: Path
) -> None:
    """A wait is satisfied, one expires, a signal has a value, and a wait survives a lost connection."""
    release, process = daemon
    with proxy_thread(process.address) as (proxy, loop):
        command = [sys.executable, str(PROGRAM), proxy.address, f"{client}-{release}"]
        environment = {"PYTHONPATH": paths[client], "PYTHONSAFEPATH": "1"}  # not the package next to the program
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            lines = []
            for line in program.stdout:
                lines.append(line.split())
                if line.startswith("pending"):
                    loop.run(cut(proxy))
                    program.stdin.write("\n")
                    program.stdin.flush()
            assert program.wait(PATIENCE_S) == 0
    imported = lines.pop(3)[1]
    assert imported.startswith(paths[client].split(os.pathsep)[0])
    assert lines == [["satisfied", "True", "0"], ["expired", "EXPIRED"], ["value", "artifact-7"], ["resumed", "True"]]
