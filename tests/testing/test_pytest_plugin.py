"""The pytest plugin in a project of its own: an empty folder, and pytest as its users run it."""

import re
import sys
from pathlib import Path

import pytest

from tests.kit.daemon import DaemonProcess, daemon_environment
from tests.kit.programs import run_program

pytestmark = [pytest.mark.sockets, pytest.mark.slow]  # each runs pytest, most of them with a daemon

PIPELINE = '''
import threading

import pytest
from purgatory_client import Client


@pytest.fixture
def table(purgatory):
    """Numbers are written to a log; a worker with a client of its own copies them into the table."""
    log, rows = threading.Event(), []

    def work():
        log.wait(60)
        with Client(purgatory.address) as client:
            for row in range(3):
                rows.append(row)
                client.advance("table/rows-0", high_watermark=row + 1)

    worker = threading.Thread(target=work)
    worker.start()
    yield log.set, rows
    log.set()
    worker.join()


def test_rows_arrive(purgatory, table):
    write, rows = table
    write()
    purgatory.client.produce({"table/rows-0": 3}, timeout=60).raise_for_outcome()
    assert rows == [0, 1, 2]


def test_daemon_is_the_same(purgatory):
    assert purgatory.client.partition("table/rows-0").high_watermark == 3
'''
UNUSED = """
import sys


def test_nothing_is_loaded_that_is_not_used():
    assert "purgatory.testing.pytest_plugin" in sys.modules
    assert not {"grpc", "purgatory_client", "purgatory.daemon", "purgatory.engine"} & sys.modules.keys()
"""


def run_pytest(folder: Path, *arguments: str, **files: str) -> tuple[int, str]:
    """Write the files, run pytest on the folder with the installed plugin, and return its exit code and output."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    # Without the plugins of this project's environment, which take most of the time that pytest needs to start.
    absent = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "anyio", "asyncio", "xdist")]
    command = [sys.executable, "-m", "pytest", *absent, "-W", "error", "--tb=short", *arguments]
    environment = {name: text for name, text in daemon_environment().items() if not name.startswith("PYTEST_")}
    done = run_program(command, code=None, cwd=folder, env=environment, timeout_s=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [[], ["-o", "purgatory_in_process=true"]])
def test_a_pipeline_is_tested_without_sleeps(tmp_path: Path, options: list[str]) -> None:
    """In an empty project, with warnings as errors, both tests pass on one daemon: a process, or in pytest's own."""
    code, printed = run_pytest(tmp_path, *options, test_pipeline=PIPELINE)
    assert (code, re.findall(r"\d+ passed", printed)) == (0, ["2 passed"]), printed


def test_a_run_that_uses_no_fixture_loads_nothing(tmp_path: Path) -> None:
    """The plugin is found by its entry point, and imports neither gRPC nor the daemon."""
    code, printed = run_pytest(tmp_path, test_unused=UNUSED)
    assert code == 0, printed


def test_arguments_come_from_the_settings_or_a_fixture(tmp_path: Path) -> None:
    """The daemon gets the flags of the project's file, or those of a fixture with the same name."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npurgatory_arguments = --limits-items-per-operation-max 2\n", "utf-8"
    )
    test = """
import pytest
from purgatory_client.errors import InvalidRequest

def test_limit(purgatory):
    with pytest.raises(InvalidRequest, match="{limit}"):
        purgatory.client.signal(["a", "b", "c", "d"], timeout=0)
"""
    code, printed = run_pytest(tmp_path, test_limit=test.format(limit=2))
    assert code == 0, printed
    conftest = """
import pytest

@pytest.fixture(scope="session")
def purgatory_arguments():
    return ["--limits-items-per-operation-max", "3"]
"""
    code, printed = run_pytest(tmp_path, conftest=conftest, test_limit=test.format(limit=3))
    assert code == 0, printed


def test_an_existing_daemon_is_used(
    tmp_path: Path, shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an address no daemon is started, and `processed` waits as long as the settings say."""
    test = """
import os
import pytest
from purgatory_client.errors import Unavailable

def test_address(purgatory, processed):
    assert purgatory.address == os.environ["EXPECTED"]
    with pytest.raises(Unavailable, match="no source that publishes"):
        processed("nobody", "nothing")
"""
    monkeypatch.setenv("EXPECTED", shared_daemon.address)
    options = ["-o", f"purgatory_address={shared_daemon.address}", "-o", "purgatory_timeout=0.1"]
    code, printed = run_pytest(tmp_path, *options, test_address=test)
    assert code == 0, printed
    code, printed = run_pytest(tmp_path, *options[:2], "-o", "purgatory_timeout=soon", test_address=test)
    assert (code, "purgatory_timeout is not a number of seconds: 'soon'" in printed) == (1, True), printed


def test_a_daemon_that_does_not_start_fails_the_test_with_its_message(tmp_path: Path) -> None:
    test = "def test_flag(purgatory):\n    pass\n"
    code, printed = run_pytest(tmp_path, "-o", "purgatory_arguments=--no-such-flag", test_flag=test)
    assert code == 1
    assert "DaemonFailed: the daemon ended with exit code 2" in printed
    assert "--no-such-flag" in printed
