"""What a release promises to the next one: docs/compatibility.md, with a test for each surface."""

from pathlib import Path
from typing import Final

RELEASED: Final = Path(__file__).parent / "fixtures" / "0.1.0rc"
"""What the last release has published and written."""
