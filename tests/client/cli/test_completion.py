"""Completion in the shell: names from a daemon, choices, and flags."""

import os
import shutil
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
from tests.kit.programs import run_program


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


def test_completion_without_a_daemon_prints_no_message() -> None:
    assert completed("show ") == []
    assert completed("show ", "http://127.0.0.1:7441") == []


def require_shell(shell: str) -> None:
    """Skip if the shell is not installed; fail if shells are required."""
    if shutil.which(shell) is None:
        assert os.environ.get("PURGATORY_REQUIRE_SHELLS") != "1", f"PURGATORY_REQUIRE_SHELLS=1: there is no {shell}"
        pytest.skip(f"no {shell} found; apt install {shell}")


IN_BASH = """
    eval "$(_PURGATORY_COMPLETE=bash_source purgatory)"
    offer() {
        COMPREPLY=() COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _purgatory_completion purgatory
        printf '%s\\n' "${COMPREPLY[@]}"
    }
    offer purgatory st
    offer purgatory ls --pa
    until [ "${COMPREPLY[*]}" = orders-12 ]; do offer purgatory show orders-1 > /dev/null; done  # a daemon may be late
"""
IN_ZSH = """
    compdef() { true; }
    compadd() { print -rl -- $completions; }
    _describe() { print -rl -- ${completions_with_descriptions%%:*}; }
    eval "$(_PURGATORY_COMPLETE=zsh_source purgatory)"
    offer() { words=("$@"); CURRENT=$#; _purgatory_completion; }
    offer purgatory st
    offer purgatory ls --pa
"""
IN_FISH = """
    _PURGATORY_COMPLETE=fish_source purgatory | source
    complete -C "purgatory st" | cut -f 1
    complete -C "purgatory ls --pa" | cut -f 1
"""


@pytest.mark.parametrize(("shell", "program"), [("bash", IN_BASH), ("zsh", IN_ZSH), ("fish", IN_FISH)])
def test_a_shell_completes_commands_and_options(named: str, shell: str, program: str, tmp_path: Path) -> None:
    """A real shell completes `purgatory st` and `purgatory ls --pa`, and bash the names of the daemon. Zsh's completion
    function exists only in a terminal, so for zsh the arguments passed to it are checked.
    """
    require_shell(shell)
    command = tmp_path / "purgatory"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m purgatory "$@"\n', "utf-8")
    command.chmod(0o755)
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PURGATORY_ADDRESS": named}
    done = run_program([shell, "-c", program], env={**environment(), **variables})
    assert sorted(done.stdout.splitlines()) == ["--partition", "--partitions", "status"], done.stderr
