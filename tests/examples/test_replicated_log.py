"""The replicated-log example: its log file, and its real processes, of which a follower is killed midway."""

import contextlib
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.replicated_log.clients import split_lines
from examples.replicated_log.log_file import CorruptRecord, LogFile, LogRecord, OffsetOutOfRange, decode_all
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


# The log file.

PAYLOAD = st.binary(max_size=8)
STEPS = st.lists(
    st.tuples(st.just("append"), PAYLOAD)
    | st.tuples(st.just("trim"), st.integers(0, 30))
    | st.tuples(st.just("reopen"), st.integers(0, 15)),
    max_size=30,
)


@given(STEPS, st.integers(1, 100))
def test_log_file_is_read_and_copied_as_it_was_written(steps: list[tuple[str, Any]], bytes_max: int) -> None:
    """Through trims, and a last record of which some bytes are missing when it is opened again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log, start, expected = LogFile(path), 0, list[bytes]()
        for step, given_value in steps:
            if step == "append":
                assert log.append(given_value) == len(expected)
                expected.append(given_value)
            elif step == "trim":
                start = max(start, min(given_value, len(expected) - 1))  # one record stays
                log.trim(start)
            else:
                log.close()
                if given_value and start < len(expected) - (start > 0):
                    path.write_bytes(path.read_bytes()[:-given_value])
                    expected.pop()
                log = LogFile(path)
        end = len(expected)
        assert (log.log_start_offset, log.log_end_offset) == (start, end)
        copy = LogFile(Path(folder) / "copy")
        for outside in (start - 1, end + 1):
            with pytest.raises(OffsetOutOfRange):
                log.read(outside, end, bytes_max)
        records = [LogRecord(offset, payload) for offset, payload in enumerate(expected)][start:]
        assert list(decode_all(path.read_bytes())) == records
        if start == 0:
            while read := log.read(copy.log_end_offset, end, bytes_max):
                copy.append_copy(read)
            assert list(decode_all((Path(folder) / "copy").read_bytes())) == records
        with pytest.raises(OffsetOutOfRange):
            copy.append_copy(LogRecord(end + 1, b"").encode())
        log.close()
        copy.close()


def test_any_flipped_bit_is_detected() -> None:
    encoded = LogRecord(7, b"payload").encode()
    for place in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[place] ^= 1
        with pytest.raises(CorruptRecord):
            list(decode_all(bytes(damaged)))


@pytest.mark.parametrize("data", [b"a\nb\n", b"a\nb", b"\n\n", b"a\r\n\xff"])
def test_lines_join_to_the_file(data: bytes) -> None:
    assert b"\n".join(split_lines(data)) + (b"\n" if data.endswith(b"\n") else b"") == data
