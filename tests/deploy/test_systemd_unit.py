"""The units of docs/fleet.md and docs/operations.md, as systemd reads them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("page", ["fleet.md", "operations.md"])
def test_unit_is_accepted_and_always_restarts(page: str, tmp_path: Path) -> None:
    found = re.search(r"^```text\n(\[Unit\].*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    # This machine has neither the program nor the user.
    unit = found[1].replace("/opt/purgatory/bin/purgatory", shutil.which("true") or "").replace("User=purgatory\n", "")
    assert {"Restart=always", "StartLimitIntervalSec=0"} <= set(unit.splitlines())
    path = tmp_path / "purgatory.service"
    path.write_text(unit, "utf-8")
    ran = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
