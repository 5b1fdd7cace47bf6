"""Programs that run to their end, and commands of the command line, called in this process as functions that
return exit codes; and the message of a test that needs a missing program.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click
import pytest

from purgatory.extensions.fleet.commands import fleet
from purgatory.extensions.installed import ALL
from purgatory.journal.maintenance import journal
from purgatory.run_daemon import daemon_command
from purgatory.service.access.commands import policy, token
from tests.kit.eventually import PATIENCE_S


def run_program(
    command: Sequence[str],
    *,
    code: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program; returns its output. It must exit with this code; None: any."""
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert code is None or ran.returncode == code, f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran


def exit_code(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command in this process; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments, f"purgatory {command.name}")
    assert isinstance(ended.value.code, int)
    return ended.value.code


Run = Callable[[Sequence[str]], int]
fleet_command: Final[Run] = partial(exit_code, fleet)
journal_command: Final[Run] = partial(exit_code, journal)
token_command: Final[Run] = partial(exit_code, token)
policy_command: Final[Run] = partial(exit_code, policy)
serve_command: Final[Run] = partial(exit_code, daemon_command(ALL))


def skip_unless_required(name: str, reason: object) -> NoReturn:
    """Skip the test, or fail it if the environment says PURGATORY_REQUIRE_<name>=1."""
    if os.environ.get(f"PURGATORY_REQUIRE_{name}") == "1":
        pytest.fail(f"PURGATORY_REQUIRE_{name}=1: {reason}")
    pytest.skip(str(reason))
