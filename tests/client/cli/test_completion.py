"""Completion in real shells. What it offers is in transcripts/completion.txt."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from purgatory_client import Client

from purgatory.cli.app import app
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.programs import run_program
from tests.kit.required import skip_unless_required


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


def test_completion_without_a_daemon_prints_no_message() -> None:
    assert completed("show ") == []
    assert completed("show ", "http://127.0.0.1:7441") == []


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
def test_a_shell_completes_commands_and_options(
    shared_daemon: DaemonProcess, shell: str, program: str, tmp_path: Path
) -> None:
    """A real shell completes `purgatory st` and `purgatory ls --pa`, and bash the names of the daemon. Zsh's completion
    function exists only in a terminal, so for zsh the arguments passed to it are checked.
    """
    if shutil.which(shell) is None:
        skip_unless_required("SHELLS", f"no {shell} found; apt install {shell}")
    with Client(shared_daemon.address) as client:
        client.advance("orders-12", high_watermark=1)
    command = tmp_path / "purgatory"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m purgatory "$@"\n', "utf-8")
    command.chmod(0o755)
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PURGATORY_ADDRESS": shared_daemon.address}
    done = run_program([shell, "-c", program], env={**environment(), **variables})
    assert sorted(done.stdout.splitlines()) == ["--partition", "--partitions", "status"], done.stderr
