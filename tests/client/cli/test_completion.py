"""Completion in the shell: names from a daemon, choices, and flags."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from purgatory_client import Client, batches

from purgatory.cli import completion
from purgatory.cli.app import app
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess


def completed(words: str, address: str = "127.0.0.1:1") -> list[str]:
    """What bash offers after these words; the last one is incomplete, or empty after a space."""
    variables = {
        "_PURGATORY_COMPLETE": "bash_complete",
        "COMP_WORDS": f"purgatory {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "PURGATORY_ADDRESS": address,
    }
    done = CliRunner().invoke(app, [], prog_name="purgatory", env=variables)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return [line.removeprefix("plain,") for line in done.stdout.split()]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a daemon that knows some names, one of them hostile."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("completion"))
    try:
        with Client(daemon.address) as client:
            client.advance("orders-3", high_watermark=1)
            client.advance("orders-12", high_watermark=1)
            client.advance("other-0", high_watermark=1)
            client.advance("orders$(reboot)-0", high_watermark=1)
            client.register("night", 1, batches.signal(["job-17"], timeouts_ms=[600_000]))
            yield daemon.address
    finally:
        daemon.kill()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("wait ord", ["orders-12", "orders-3"]),
        ("wait orders-1", ["orders-12"]),
        ("wait signal:", ["signal:job-17"]),
        ("wait signal :", ["job-17"]),
        ("wait signal : jo", ["job-17"]),
        ("ls --prefix ot", ["other"]),
        ("ready pod oth", ["other"]),
        ("dead-letters --resend ", []),
        ("advance ot", ["other-0"]),
        ("show ni", ["night/1"]),
        ("cancel ", ["night/1"]),
        ("cancel --key ", ["job-17"]),
        ("cancel --session n", ["night"]),
        ("close ", ["night"]),
        ("caught-up oth", ["other"]),
        ("ls --partition orders-3", ["orders-3"]),
        ("ls --partition nowhere", []),
    ],
)
def test_names_come_from_the_daemon(
    named: str, words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions, keys, sessions and operations are offered, but no name that a shell would evaluate. Bash makes three
    words of one with a colon, and is then offered the rest of it.
    """
    monkeypatch.setattr(completion, "PATIENCE_S", 60.0)  # the machine may be busy
    assert completed(words, named) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sta", ["status"]),
        ("ls --sort ", ["remaining", "waited"]),
        ("ls --kind del", ["delete_records"]),
        ("tail --outcome ex", ["expired"]),
        ("help exit", ["exit-codes"]),
        ("serve --journal-m", ["--journal-mode"]),
        ("serve --journal-mode ", ["sync", "async"]),
        ("serve --journal-mode = a", ["async"]),
        ("serve --data-dir ", ["file,"]),
        ("journal ", ["check", "export", "import"]),
        ("journal check ", ["file,"]),
        ("token ", ["list", "new"]),
        ("token new --ex", ["--expires"]),
        ("policy check --m", ["--may"]),
    ],
)
def test_completion_without_a_daemon(words: str, offered: list[str]) -> None:
    """Commands, options and choices are offered; for files, the shell is asked to offer them."""
    assert completed(words) == offered


def test_no_daemon_offers_nothing() -> None:
    """Without a daemon, or with a bad address, there is no offer and no message."""
    assert completed("show ") == []
    assert completed("show ", "http://127.0.0.1:7441") == []


def test_bash_itself(named: str, tmp_path: Path) -> None:
    """The script that a package installs makes bash offer the names."""
    program = tmp_path / "purgatory"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m purgatory "$@"\n', "utf-8")
    program.chmod(0o755)
    script = """
        eval "$(_PURGATORY_COMPLETE=bash_source purgatory)"
        COMP_WORDS=(purgatory show orders-1) COMP_CWORD=2
        until [ "${COMPREPLY[*]}" ]; do _purgatory_completion purgatory; done  # a busy daemon may answer too late
        echo "${COMPREPLY[@]}"
    """
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PURGATORY_ADDRESS": named}
    done = subprocess.run(
        ["bash", "-c", script], env={**environment(), **path}, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "orders-12\n", done.stderr
