"""A later release, made from this tree by next_release.patch: it adds a field of results, a kind of call, a setting and
a column of the journal, in a table of its own, which has a row for each key that begins with `labelled/`.

If the patch no longer applies, correct its context: it stands for what any release may add.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.kit.daemon import EXECUTE
from tests.kit.programs import run_program

ROOT: Final = Path(__file__).resolve().parents[2]
PATCH: Final = Path(__file__).with_suffix(".patch")
LABEL: Final = "PURGATORY_SESSION_LABEL"
"""The setting, as a variable."""


def make_next_release(folder: Path) -> dict[str, str]:
    """Write the later release into a folder. Returns the environment of programs that import it, uncompiled."""
    for name in ("purgatory", "proto"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy2(ROOT / "setup.py", folder)
    run_program(["git", "apply", str(PATCH)], cwd=folder)
    run_program([sys.executable, "setup.py", "-q", "stubs"], cwd=folder)
    return {"PYTHONPATH": os.pathsep.join([str(folder), EXECUTE["PYTHONPATH"]])}
