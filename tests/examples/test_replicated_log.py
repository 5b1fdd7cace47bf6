"""The replicated-log example with its real processes and files, and a follower killed midway."""

import contextlib
import os
import pty
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.replicated_log.proof import read_counters
from purgatory.extensions.archive.schema import OUTCOMES
from tests.archive.archive_replay import Replay, rows_of, without
from tests.examples.test_with_a_daemon import ENVIRONMENT, PROJECT, SECONDS_MAX
from tests.kit.daemon import children_of, is_running
from tests.kit.eventually import wait_until
from tests.kit.programs import run_program

pytestmark = pytest.mark.slow


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.replicated_log", *arguments]
    return run_program(command, code=None, cwd=PROJECT, env=ENVIRONMENT, timeout_s=SECONDS_MAX)


@pytest.fixture
def odd_lines(tmp_path: Path) -> Path:
    """Hundreds of lines of all kinds: empty, long, not UTF-8, with carriage returns and NULs; no newline at the end."""
    source = random.Random(7)
    lines = [source.randbytes(source.randrange(200)).replace(b"\n", b" ") for _ in range(200)]
    lines += [b"", b"\r", b"\xff\xfe", b"\x00" * 40, b"long " * 20_000, "straße ☃".encode(), b"", b"same", b"same"] * 8
    source.shuffle(lines)
    path = tmp_path / "odd lines.log"
    path.write_bytes(b"\n".join([*lines, b"the last line has no newline"]))
    return path


def test_the_history_of_a_run_replays(odd_lines: Path, tmp_path: Path) -> None:
    """With a follower killed midway, consumer and followers store exactly the bytes that were sent. A new engine fed
    with the archive ends every wait in the same way.
    """
    folder = tmp_path / "history"
    run = run_demo("--input", str(odd_lines), "--kill-follower", "--archive", str(folder))
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    assert "FAIL" not in run.stdout
    assert "proven: every record arrived once" in run.stdout
    assert len(re.findall(r"^ok {4}log of replica \d", run.stdout, re.MULTILINE)) == 6, run.stdout
    assert len(re.findall(r"^ok {4}/metrics", run.stdout, re.MULTILINE)) == 4, run.stdout
    assert "killed follower" in run.stdout
    outcomes = rows_of(folder, OUTCOMES)
    assert sum(row["kind"] == "produce" for row in outcomes) == len(odd_lines.read_bytes().split(b"\n"))
    assert without(Replay(folder).outcomes, "at") == without(outcomes, "at")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "No such file"), (b"", "0 lines"), (b"1\n2\n", "at least 8")],
    ids=["none", "empty", "short"],
)
def test_unusable_input_is_a_usage_error(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "input"
    if content is not None:
        path.write_bytes(content)
    run = run_demo("--input", str(path))
    assert run.returncode == 2
    assert complaint in run.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_interrupted_run_leaves_no_process(odd_lines: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "examples.replicated_log", "--input", str(odd_lines), "--kill-follower"]
    with subprocess.Popen(
        command, cwd=PROJECT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        children = set(said_pids(demo.stdout, until="killed follower"))
        started = {pid for pid in children_of(demo.pid) if pid}
        demo.send_signal(number)
        assert demo.wait(timeout=60) == 130
    assert len(started) >= 2, f"only {started} were running"  # the daemon and a follower
    wait_until(lambda: not any(map(is_running, started | children)), f"{started | children} have ended")


def test_on_a_terminal_a_load_runs_until_ctrl_c() -> None:
    """After the checks the page's address is printed, and waits of all kinds end in all ways, until Ctrl-C is typed:
    then the exit code is 0, no process is left, and no traceback is printed.
    """
    terminal, there = pty.openpty()
    # In a session of its own, whose terminal this is, so that a typed Ctrl-C is a signal.
    command = ["setsid", "--ctty", sys.executable, "-m", "examples.replicated_log"]
    with subprocess.Popen(command, cwd=PROJECT, env=ENVIRONMENT, stdin=there, stdout=there, stderr=there) as demo:
        os.close(there)
        try:
            written = ""
            while "in another terminal:" not in written:
                written += os.read(terminal, 65_536).decode()
            assert re.search(r"live page on http://\S+/\s.*proven: every record arrived once", written, re.DOTALL)
            started = children_of(demo.pid)
            [address] = re.findall(r"live page: http://(\S+)/", written)
            wanted = {"satisfied", "expired", "failed"}
            wait_until(lambda: wanted <= outcomes_at(address), "waits end in three ways")
            os.write(terminal, b"\x03")
            with contextlib.suppress(OSError):  # the terminal's other end is closed
                while more := os.read(terminal, 65_536):
                    written += more.decode()
            assert demo.wait(60) == 0
            assert "Traceback" not in written
            assert started
            wait_until(lambda: not any(map(is_running, started)), f"{started} have ended")
        finally:
            os.close(terminal)
            demo.kill()


def outcomes_at(address: str) -> set[str]:
    """How operations have ended at a daemon."""
    counters = read_counters(address).values()
    return {outcome for kind in counters for outcome, count in kind.outcomes.items() if count}


def said_pids(lines: Iterator[str], until: str) -> Iterator[int]:
    """The process ids in the output, up to and including the line that contains `until`."""
    for line in lines:
        yield from map(int, re.findall(r"\(pid (\d+)\)", line))
        if until in line:
            return
    raise AssertionError(f"the run ended before it said {until!r}")
