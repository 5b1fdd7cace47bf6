"""Mutants that behave as the engine does, so that no test can kill them: (function, what is changed, why).

A function as in mutmut's names, a glob; what is changed is a regular expression on the changed lines of its diff.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[tuple[tuple[str, str, str], ...]] = ()
