"""The test kit for other projects: real daemons, started and stopped, and the pytest plugin in an empty project."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from purgatory_client import Client, Outcome
from purgatory_client.errors import InvalidRequest, Unavailable, WaitExpired

from purgatory.extension import StartupError
from purgatory.testing import DaemonFailed, RunningDaemon, daemon_in_process, daemon_process
from tests.kit.daemon import DaemonProcess, children_of, daemon_environment, is_running
from tests.kit.eventually import wait_until
from tests.kit.programs import run_program
from tests.played_source import played_source

pytestmark = [pytest.mark.sockets, pytest.mark.slow]  # each starts a daemon


def test_a_process_serves_until_the_end_of_the_block() -> None:
    before = set(children_of(os.getpid()))
    with daemon_process("--limits-items-per-operation-max", "3") as daemon:
        [started] = set(children_of(os.getpid())) - before
        daemon.client.signal_key("done")
        assert daemon.client.signal(["done"], timeout=60).outcome == Outcome.SATISFIED
        with pytest.raises(InvalidRequest, match="3"):
            daemon.client.signal(["a", "b", "c", "d"], timeout=0)
        with urllib.request.urlopen(f"http://{daemon.http_address}/readyz", timeout=60) as page:
            assert page.status == 200
    assert not is_running(started)


def test_a_daemon_in_this_process_leaves_it_as_it_was() -> None:
    """It serves, twice in a row, and neither the collector's thresholds nor the child processes have changed."""
    gc.unfreeze()  # objects that other tests froze would leave the count as they are freed
    thresholds, children = gc.get_threshold(), set(children_of(os.getpid()))
    for _ in range(2):
        with daemon_in_process() as daemon:
            assert daemon.client.signal(["done"], timeout=0).outcome == Outcome.EXPIRED
            daemon.client.signal_key("done")
            assert daemon.client.signal(["done"], timeout=60).outcome == Outcome.SATISFIED
            assert set(children_of(os.getpid())) == children
            assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


def test_a_daemon_that_cannot_start_says_why() -> None:
    with pytest.raises(DaemonFailed, match=r"(?s)exit code 2.*--no-such-flag"), daemon_process("--no-such-flag"):
        pass
    with pytest.raises(StartupError, match="nonsense"), daemon_in_process("--extensions", "nonsense"):
        pass


def test_a_daemon_that_ends_by_itself_is_reported() -> None:
    before = set(children_of(os.getpid()))
    running = daemon_process()
    running.__enter__()
    [started] = set(children_of(os.getpid())) - before
    os.kill(started, signal.SIGKILL)
    os.waitid(os.P_PID, started, os.WEXITED | os.WNOWAIT)  # it has ended, and the kit has not noticed
    with pytest.raises(DaemonFailed, match="exit code -9"):
        running.__exit__(None, None, None)


def test_a_daemon_ends_with_a_test_run_that_is_killed() -> None:
    program = (
        "from purgatory.testing import daemon_process\nwith daemon_process(): print('serving', flush=True); input()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program], env=daemon_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"serving\n"
        [daemon] = children_of(run.pid)
        run.kill()
    wait_until(lambda: not is_running(daemon), "the daemon has ended")


async def test_processed_waits_for_the_source_and_then_for_the_group(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.address) as client:
        daemon = RunningDaemon(client)
        call = asyncio.create_task(asyncio.to_thread(daemon.processed, "billing", "early", timeout=60))
        with pytest.raises(Unavailable, match="is attached"):
            await asyncio.to_thread(daemon.processed, "billing", "early", timeout=0)
        assert not call.done()
        async with played_source(shared_daemon.address, end=3) as feeding:
            name = ("kafka/billing/early", 0)
            while not [one async for one in feeding.operations(partition=name)]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            await feeding.advance(name, high_watermark=2)
            assert not call.done()
            await feeding.advance(name, high_watermark=3)
            result = await call
    assert result.partitions["kafka/billing/early-0"].reached_offset == 3


async def test_processed_names_what_is_missing(shared_daemon: DaemonProcess) -> None:
    """A group that does not get there is an error with its offsets; a call without topics is refused."""
    async with played_source(shared_daemon.address, end=5) as feeding:
        await feeding.advance(("kafka/billing/late", 0), high_watermark=4)
        with Client(shared_daemon.address) as client:
            daemon = RunningDaemon(client)
            with pytest.raises(WaitExpired, match="kafka/billing/late-0: 4 of 5"):
                await asyncio.to_thread(daemon.processed, "billing", "late", timeout=0.2)
            with pytest.raises(InvalidRequest, match="at least one topic"):
                daemon.processed("billing")
            with pytest.raises(Unavailable) as raised:
                await asyncio.to_thread(daemon.processed, "billing", "late", timeout=0, label="nowhere")
            assert any(note.startswith("source played is live") for note in raised.value.__notes__)


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

ONE_MORE_ARGUMENT = """
import pytest


@pytest.fixture(scope="session")
def purgatory_arguments(purgatory_arguments):
    return [*purgatory_arguments, "--limits-topic-length-max", "5"]
"""
LIMITS = """
import pytest
from purgatory_client.errors import InvalidRequest


def test_limits(purgatory):
    for limit, keys in (("2", ["a", "b", "c", "d"]), ("5", ["longer"])):
        with pytest.raises(InvalidRequest, match=limit):
            purgatory.client.signal(keys, timeout=0)
"""
EXISTING = """
import os
import pytest
from purgatory_client.errors import Unavailable


def test_address(purgatory, processed):
    assert purgatory.address == os.environ["EXPECTED"]
    with pytest.raises(Unavailable, match="no source that publishes"):
        processed("nobody", "nothing")
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
    code, printed = run_pytest(tmp_path, test_unused=UNUSED)
    assert code == 0, printed


def test_arguments_come_from_the_settings_and_a_fixture(tmp_path: Path) -> None:
    """The daemon gets the flags of the project's file, to which a fixture with the same name adds one."""
    flags = ["-o", "purgatory_arguments=--limits-items-per-operation-max 2"]
    code, printed = run_pytest(tmp_path, *flags, conftest=ONE_MORE_ARGUMENT, test_limits=LIMITS)
    assert code == 0, printed


def test_an_existing_daemon_is_used(
    tmp_path: Path, shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an address no daemon is started, and `processed` waits as long as the settings say."""
    monkeypatch.setenv("EXPECTED", shared_daemon.address)
    options = ["-o", f"purgatory_address={shared_daemon.address}"]
    code, printed = run_pytest(tmp_path, *options, "-o", "purgatory_timeout=0.1", test_address=EXISTING)
    assert code == 0, printed
    code, printed = run_pytest(tmp_path, *options, "-o", "purgatory_timeout=soon", test_address=EXISTING)
    assert (code, "purgatory_timeout is not a number of seconds: 'soon'" in printed) == (1, True), printed
