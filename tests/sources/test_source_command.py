"""`purgatory-source` reports an error as one line with exit code 2, and ends cleanly on SIGTERM."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from purgatory_connectors.cli import app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kafka", "postgres://h"), "use the command postgres"),
        (("kafka", "me:hunter2@h:9092"), "an address must have no user or password"),
        (("kafka", "h:9092", "-o", "label"), "write it as NAME=VALUE"),
        (("kafka", "h:9092", "--log-format", "xml"), "--log-format xml: must be text or json"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    """Each error is one line on stderr, without possible secrets."""
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "hunter2" not in ended.stderr


def test_supervision_needs_a_supervisor() -> None:
    """Without a token on stdin, the option for the daemon's own connectors is refused."""
    command = [sys.executable, "-m", "purgatory_connectors", "kafka", "h:9092", "--supervised"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 2
    assert "--supervised is for `purgatory serve --source`" in ended.stderr


def test_it_ends_by_sigterm(tmp_path: Path) -> None:
    """Without a daemon and a broker, it retries until SIGTERM; the exit code is 0."""
    pytest.importorskip("confluent_kafka")
    command = [sys.executable, "-m", "purgatory_connectors", "kafka", "127.0.0.1:9", "--to", "127.0.0.1:1"]
    with subprocess.Popen([*command, "--state-dir", str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "not connected to the daemon at 127.0.0.1:1" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read().endswith("stopped\n")
