"""Wall-clock time, for the `at` of rows, names of runs, and how long a run has been silent. Nothing else goes by it."""

from __future__ import annotations

import time

__all__ = ["wall_ms"]


def wall_ms() -> int:
    """Milliseconds since 1970, in UTC. It may jump, even back."""
    return int(time.time() * 1_000)
