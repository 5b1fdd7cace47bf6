"""Programs that run to their end."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kit.eventually import PATIENCE_S


def run_program(
    command: Sequence[str],
    *,
    code: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program; returns what it printed. It must exit with this code; None: any."""
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert code is None or ran.returncode == code, f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran
