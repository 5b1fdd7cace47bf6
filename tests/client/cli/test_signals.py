"""`purgatory signal` and `purgatory extend` as a user runs them."""

import json
import os
import time
from base64 import b64encode
from pathlib import Path

import pytest
from purgatory_client import Client, batches

from tests.client.cli.test_commands import Background, Run, looking, run
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S

__all__ = ["looking", "run"]


def until_waiting_on(client: Client, key: str) -> None:
    """Return when an operation waits on a key."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not list(client.operations(key=key)):
        assert time.monotonic() < deadline_s, f"nothing waits on {key}"
        time.sleep(0.01)


def test_a_value_from_a_file_reaches_the_wait(
    shared_daemon: DaemonProcess, run: Run, looking: Client, tmp_path: Path
) -> None:
    """The wait prints the value, in a line or as JSON; text is sent as it is; a missing file is an error of usage."""
    path = tmp_path / "result.json"
    path.write_text('{"rows": 17}', "utf-8")
    waiting = Background(shared_daemon.address, "wait", "--signal", "cli/job")
    until_waiting_on(looking, "cli/job")
    signalled = run("signal", "cli/job", "--value-file", str(path))
    assert (signalled.returncode, signalled.stdout) == (0, "1 event: 1 wait ended\n")
    code, out, _ = waiting.end()
    assert code == 0
    assert 'cli/job: reached 1 of 1, value {"rows": 17}' in out
    assert run("signal", "cli/job", "--value", "later").returncode == 0
    answer = run("wait", "--signal", "cli/job@2", "--json")
    assert json.loads(answer.stdout)["partitions"]["cli/job"]["signal_value"] == '{"rows": 17}'
    assert run("signal", "cli/text", "--count", "2", "--value", "done\x1b[2J").returncode == 0
    assert "value done\\x1b[2J\n" in run("wait", "--signal", "cli/text@2").stdout
    absent = run("signal", "cli/job", "--value-file", "/no/such/file")
    assert absent.returncode == 2
    assert "cannot read the value" in absent.stderr


def test_value_that_begins_with_an_at_sign_is_itself(run: Run, looking: Client, tmp_path: Path) -> None:
    """A text that another program chose is never taken for the name of a file."""
    (tmp_path / "secret").write_text("secret", "utf-8")
    assert run("signal", "cli/at", "--value", f"@{tmp_path / 'secret'}").returncode == 0
    assert looking.signal(["cli/at"], timeout=0).partitions["cli/at"].signal_value == f"@{tmp_path / 'secret'}".encode()


def test_value_of_an_endless_file_is_refused(run: Run) -> None:
    """One byte more than a value may have is read."""
    endless = run("signal", "cli/endless", "--value-file", "/dev/zero")
    assert (endless.returncode, "more than 4,096 bytes" in endless.stderr) == (2, True)
    both = run("signal", "cli/endless", "--value-file", "/dev/zero", "--value", "x")
    assert (both.returncode, "cannot be combined" in both.stderr) == (2, True)


def test_value_that_is_not_text_is_base64(run: Run, looking: Client, tmp_path: Path) -> None:
    """Two values that differ are not printed alike, and what a shell passes is sent as it is."""
    for key, value in (("cli/ff", b"\xff"), ("cli/fe", b"\xfe")):
        (tmp_path / "value").write_bytes(value)
        assert run("signal", key, "--value-file", str(tmp_path / "value")).returncode == 0
        item = json.loads(run("wait", "--signal", key, "--json").stdout)["partitions"][key]
        assert (item["signal_value_base64"], "signal_value" in item) == (b64encode(value).decode(), False)
        assert f"value \\x{value.hex()}\n" in run("wait", "--signal", key).stdout
    assert run("signal", "cli/shell", "--value", os.fsdecode(b"\xff")).returncode == 0
    assert looking.signal(["cli/shell"], timeout=0).partitions["cli/shell"].signal_value == b"\xff"


def test_a_failed_signal_and_a_missed_heartbeat(run: Run) -> None:
    """Both end a wait with exit code 10, with the code of the error and the reason."""
    assert run("signal", "cli/broken", "--failed", "--value", "disk full").returncode == 0
    failed = run("wait", "--signal", "cli/broken")
    assert failed.returncode == 10
    assert "cli/broken: reached 1 of 1, error 1003 SIGNAL_FAILED, value disk full" in failed.stdout
    assert run("signal", "cli/silent", "--heartbeat").returncode == 0
    silent = run("wait", "--signal", "cli/silent", "--heartbeat", "50ms")
    assert silent.returncode == 10
    assert "cli/silent: reached 0 of 1, error 1004 HEARTBEAT_MISSED" in silent.stdout


@pytest.mark.parametrize("other", [("--value", "x"), ("--failed",), ("--count", "2")], ids=" ".join)
def test_a_heartbeat_is_nothing_else(run: Run, other: tuple[str, ...]) -> None:
    """With a value, a failure or a count, it is refused by the command."""
    answer = run("signal", "cli/job", "--heartbeat", *other)
    assert answer.returncode == 2
    assert "--heartbeat cannot be combined" in answer.stderr


def test_operations_are_extended(run: Run, looking: Client) -> None:
    """Each operation is reported; exit code 16 if one was not pending."""
    looking.register("cli-extend", 1, batches.produce(["cli-extend-0"], offsets=[1, 1], timeouts_ms=[60_000]))
    both = run("extend", "cli-extend/1", "cli-extend/2", "--timeout", "1h")
    assert (both.returncode, both.stdout) == (0, "cli-extend/1: extended\ncli-extend/2: extended\n")
    assert looking.operation("cli-extend", 2).remaining > 3_000
    one = run("extend", "cli-extend/1", "cli-extend/9", "--json")
    assert (one.returncode, json.loads(one.stdout)) == (16, {"cli-extend/1": True, "cli-extend/9": False})
    assert run("extend", "cli-extend-1").returncode == 2
    assert run("extend", "nobody/1").returncode == 16
    looking.close_session("cli-extend")
