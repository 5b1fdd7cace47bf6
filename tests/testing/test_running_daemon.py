"""Daemons for tests of other projects: real ones, started, asked and stopped."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from purgatory_client import Client, Outcome
from purgatory_client.errors import InvalidRequest, Unavailable, WaitExpired

from purgatory.extension import StartupError
from purgatory.testing import DaemonFailed, RunningDaemon, daemon_in_process, daemon_process
from tests.kit.daemon import DaemonProcess, children_of, daemon_environment, is_running
from tests.kit.eventually import wait_until
from tests.played_source import played_source

pytestmark = [pytest.mark.sockets, pytest.mark.slow]  # each starts a daemon


def test_a_process_serves_until_the_end_of_the_block() -> None:
    """A wait is satisfied, the HTTP port answers at its own address, and afterwards the process has ended."""
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
    """A test that went on without its daemon does not pass unnoticed."""
    before = set(children_of(os.getpid()))
    running = daemon_process()
    running.__enter__()
    [started] = set(children_of(os.getpid())) - before
    os.kill(started, signal.SIGKILL)
    os.waitid(os.P_PID, started, os.WEXITED | os.WNOWAIT)  # it has ended, and the kit has not noticed
    with pytest.raises(DaemonFailed, match="exit code -9"):
        running.__exit__(None, None, None)


def test_a_daemon_ends_with_a_test_run_that_is_killed() -> None:
    """A run that is killed cannot stop its daemon; the daemon ends all the same."""
    program = (
        "from purgatory.testing import daemon_process\nwith daemon_process(): print('serving', flush=True); input()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program],
        env=daemon_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"serving\n"
        [daemon] = children_of(run.pid)
        run.kill()
    wait_until(lambda: not is_running(daemon), "the daemon has ended")


async def test_processed_waits_for_the_source_and_then_for_the_group(shared_daemon: DaemonProcess) -> None:
    """A call that comes before the source is answered once the group has reached the end of the topic."""
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
