"""`purgatory token` and `purgatory policy`: output, files and exit codes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from purgatory.service.access.tokens import hash_of, read_tokens
from tests.access.guarded import POLICY
from tests.kit.commands import policy_command, token_command


def test_a_token_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the only output on stdout, so that it can be redirected into a file."""
    tokens = ["--tokens", str(tmp_path / "tokens")]
    assert token_command(["new", "ann", *tokens, "--expires", "90d"]) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    known = read_tokens(tmp_path / "tokens")[hash_of(token)]
    assert known.principal == "ann"
    assert 0 <= time.time() + 90 * 86_400 - known.expires_s < 60
    assert token not in shown.err
    assert token_command(["list", *tokens]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("ann  ")
    assert token not in listed


@pytest.mark.parametrize("expires", ["90", "90s", "d", "-1d", "1.5h", "", "\u0663d", "9" * 23 + "d"])
def test_token_with_an_invalid_expiry_is_not_made(tmp_path: Path, expires: str) -> None:
    assert token_command(["new", "ann", "--tokens", str(tmp_path / "tokens"), f"--expires={expires}"]) == 2
    assert not (tmp_path / "tokens").exists()


def test_bad_name_or_file_of_tokens_is_one_line_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert token_command(["new", "a b", "--tokens", str(tmp_path / "tokens")]) == 1
    assert token_command(["list", "--tokens", str(tmp_path / "absent")]) == 1
    assert token_command(["new", "ann", "--tokens", str(tmp_path / "no" / "folder")]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert [line.partition(":")[0] for line in said.err.splitlines()] == ["purgatory token"] * 3


def test_policy_check_answers_as_the_daemon_would_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY, "utf-8")
    assert policy_command(["check", str(path)]) == 0
    asked = ["check", str(path), "--as", "advance", "--may", "advance"]
    assert (policy_command([*asked, "mine-3"]), policy_command([*asked, "yours-3"])) == (0, 1)
    assert (policy_command([*asked, "mine/x", "--key"]), policy_command([*asked, "mine/x"])) == (0, 1)
    assert policy_command(["check", str(path), "--as", "nobody", "--may", "wait", "mine-3"]) == 1
    assert policy_command(["check", str(path), "--as", "advance"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1:6] == ["yes", "no", "yes", "no", "no"]
    assert "advance  topics: mine-*  keys: mine/*" in out
    assert out.splitlines()[-1] == "shares   as for all"
    path.write_text(f"{POLICY}\n[principals.advance.shares]\ntimes_free = 0\nsessions_max = 9\n", "utf-8")
    assert policy_command(["check", str(path), "--as", "advance"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "shares   times_free = 0, sessions_max = 9"


def test_policy_check_prints_each_fault_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[grant]]\nto = ["a"]\nroles = ["x"]\ntopics = ["t"]\n[[grant]]\nroles = ["wait"]\n', "utf-8")
    assert policy_command(["check", str(path)]) == 1
    faults = capsys.readouterr().err.splitlines()
    assert ["grant 1, roles 1" in faults[0], "grant 2, to" in faults[1]] == [True, True]
    path.write_text(f"x = {'9' * 5_000}", "utf-8")
    assert policy_command(["check", str(path)]) == 1
    assert policy_command(["check", str(path), "--may", "wait", "x"]) == 2
    assert policy_command(["check", str(path), "--as", "a", "--may", "rule", "x"]) == 2
