"""Mutants that behave as the engine does, so that no test can kill them: (function, what is changed, why).

A function as in mutmut's names, a glob; what is changed is a regular expression on the changed lines of its diff.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[tuple[tuple[str, str, str], ...]] = (
    ("*.partition.*raise_high_watermark", r"^\+.*offset <= self\.log_start_offset", "an equal offset becomes itself"),
    ("*.partition.*recompute_high_watermark", r"^\+.*<= candidate", "an equal candidate becomes itself"),
    ("*.FetchItem*__init__", r"^\+.*self\.(start_segment|start_reach)\b", "anchor() assigns it before it is read"),
    ("*.marks.events.*", r"^\+.*(fetches_first=|_settle\(.*(True|False)\))", "the order of kinds is not specified"),
)
