"""A later release, made from this tree by the edits in next_release.toml: it adds a field of results, a kind of call, a
setting and a column of the journal, in a table of its own, which has a row for each key that begins with `labelled/`.
"""

import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Final

from tests.kit.daemon import EXECUTE
from tests.kit.programs import run_program

ROOT: Final = Path(__file__).resolve().parents[2]
EDITS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["edit"]
LABEL: Final = "PURGATORY_SESSION_LABEL"
"""The setting, as a variable."""


def edited(name: str, text: str, before: str, after: str) -> str:
    assert text.count(before) == 1, f"{name} has {text.count(before)} places with {before!r}: see next_release.toml"
    return text.replace(before, after)


def make_next_release(folder: Path) -> dict[str, str]:
    """Write the later release into a folder. Returns the environment of programs that import it, uncompiled."""
    for name in ("purgatory", "proto"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy2(ROOT / "setup.py", folder)
    for edit in EDITS:
        path = folder / edit["file"]
        text = path.read_text("utf-8") if "before" in edit else ""
        path.write_text(edited(edit["file"], text, edit.get("before", text), edit["after"]), "utf-8")
    run_program([sys.executable, "setup.py", "-q", "stubs"], cwd=folder)
    return {"PYTHONPATH": os.pathsep.join([str(folder), EXECUTE["PYTHONPATH"]])}
