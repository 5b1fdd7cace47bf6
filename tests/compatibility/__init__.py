"""The promises of docs/compatibility.md from one release to the next, with a test for each surface."""

import zipfile
from pathlib import Path
from typing import Final

RELEASED: Final = Path(__file__).parent / "fixtures" / "0.1.0"
"""Packages that the last release published, and files that it wrote."""


def unpack_release(folder: Path) -> dict[str, str]:
    """Unpack the wheel of the last release, which is uncompiled. Returns the environment of programs that import it."""
    [wheel] = RELEASED.glob("purgatory_waits-*-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return {"PYTHONPATH": str(folder)}
