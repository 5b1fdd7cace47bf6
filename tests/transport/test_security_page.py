"""The ten-minute tutorial of docs/security.md works as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from purgatory.cli.app import app
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.service.setting_sources import setting_names
from tests.kit.daemon import ServeDaemon

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
PURGATORY = """
purgatory() {
  { printf '%q ' "PURGATORY_TLS_CA=${PURGATORY_TLS_CA:-}" "$@"; echo; } > asked
  { read -r code; cat; } < answered
  return "$code"
}
"""
"""Has the command run by `answering`: a new Python for each one takes half a second."""


@contextmanager
def answering(address: str) -> Iterator[None]:
    """Run commands of this tree in a thread, against the daemon at `address`."""

    def answer() -> None:
        while line := Path("asked").read_text("utf-8"):
            trust, *arguments = shlex.split(line)
            environment = {"PURGATORY_ADDRESS": address, **dict([trust.split("=", 1)])}
            done = CliRunner().invoke(app, arguments, env=environment)
            Path("answered").write_text(f"{done.exit_code}\n{done.stdout}", "utf-8")

    for name in ("asked", "answered"):
        os.mkfifo(name)
    thread = Thread(target=answer, daemon=True)
    thread.start()
    yield
    Path("asked").write_text("", "utf-8")
    thread.join()
    for name in ("asked", "answered"):
        Path(name).unlink()


def run(script: str, address: str = "") -> str:
    """Run the commands and return their output. `purgatory` is this tree's, and its daemon is the one at `address`."""
    with answering(address):
        done = subprocess.run(
            ["bash", "-euc", PURGATORY + script], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tutorial_of_the_security_page_works_as_written(
    serve_daemon: ServeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, served, called, certificates = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert run(made).endswith("yes\n")
    words = shlex.split(served.replace("\\\n", " "), comments=True)
    assert words[:2] == ["purgatory", "serve"]
    daemon = serve_daemon(*words[2:])
    answers = run(called, daemon.address)
    assert "satisfied" in answers
    assert answers.endswith("refused: exit code 17\n")
    [new_key] = re.findall(r"^new_key=.*\n", made, re.MULTILINE)
    run(new_key + certificates)
    assert (tmp_path / "billing.crt").exists()


def test_settings_on_the_page_exist() -> None:
    groups = {name.partition(".")[0] for name in setting_names(ALL_SETTINGS) if "." in name}
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)", PAGE.read_text("utf-8")))
    settings = {name for name in named if name.partition(".")[0] in groups and not name.endswith((".crt", ".key"))}
    assert len(settings) > 20
    assert settings <= set(setting_names(ALL_SETTINGS))


def test_every_limit_is_on_the_page() -> None:
    bounds = {
        name
        for name in setting_names(ALL_SETTINGS)
        if name.startswith(("limits.", "shares.")) or name.endswith("s_max")
    }
    page = PAGE.read_text("utf-8")
    assert len(bounds) > 15
    assert {name for name in bounds if f"`{name}`" not in page} == set()
