"""Signals that arrive before the daemon serves, also if it is the first process of a container."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.daemon import PACKAGE_PARENT, children_of, daemon_environment, is_running
from tests.kit.eventually import PATIENCE_S, wait_until

SLOW_MODULE = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(600)\n"
"""Replaces gRPC: the daemon keeps importing for as long as a test needs."""

COMMANDS = {"console script": ["-m", "purgatory", "serve"], "server.py": [str(PACKAGE_PARENT / "server.py")]}


def can_unshare() -> bool:
    """Whether this user may start a process as the first one of its own process namespace."""
    try:
        return subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def importing_daemon(folder: Path, arguments: list[str], wrapper: list[str]) -> Iterator[tuple[int, subprocess.Popen]]:
    """A daemon that is importing gRPC: its process id, and the process that was started (the same, or the wrapper)."""
    (folder / "grpc.py").write_text(SLOW_MODULE, "utf-8")
    environment = daemon_environment()
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{environment['PYTHONPATH']}"
    process = subprocess.Popen([*wrapper, sys.executable, *arguments], cwd=folder, env=environment)
    try:
        wait_until((folder / "importing").exists, "the daemon imports gRPC")
        yield (children_of(process.pid)[0] if wrapper else process.pid), process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("wrapper", [[], ["unshare", "--pid", "--kill-child"]], ids=["any process", "first process"])
@pytest.mark.parametrize("command", COMMANDS)
def test_sigterm_ends_a_daemon_that_is_still_importing(tmp_path: Path, command: str, wrapper: list[str]) -> None:
    """Exit code 143 at once; for a first process without a handler, the kernel would ignore the signal."""
    if wrapper and not can_unshare():
        pytest.skip("a process namespace needs root")
    with importing_daemon(tmp_path, COMMANDS[command], wrapper) as (daemon, process):
        os.kill(daemon, signal.SIGHUP)
        os.kill(daemon, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert not is_running(daemon)
