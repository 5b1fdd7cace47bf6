"""Places at which tests/crash lets the daemon die as by a power switch. A hook for tests, and no setting."""

from __future__ import annotations

import os
import signal
from typing import Final

BEFORE_BEGIN: Final = "before-begin"
BEFORE_COMMIT: Final = "before-commit"
AFTER_COMMIT: Final = "after-commit"
AFTER_TELLING: Final = "after-telling"
AFTER_CHECKPOINT: Final = "after-checkpoint"
AFTER_VACUUM: Final = "after-vacuum"
NEVER: Final = "never"
POINTS: Final = (BEFORE_BEGIN, BEFORE_COMMIT, AFTER_COMMIT, AFTER_TELLING, AFTER_CHECKPOINT, AFTER_VACUUM)

VARIABLE: Final = "PURGATORY_TEST_CRASH_AT"
"""In the environment of a daemon that is to die; a value like those of `CrashPoints`."""


class CrashPoints:
    """'before-commit:3' kills the process when it comes before a commit for the third time."""

    def __init__(self, where: str = NEVER) -> None:
        """Raises ValueError for what is no point."""
        self._point, _, times = where.partition(":")
        if self._point not in {NEVER, *POINTS}:
            raise ValueError(f"{where}: should be one of {', '.join(POINTS)}, with :N for the Nth time")
        self._times_left = int(times or 1)

    @classmethod
    def from_environment(cls) -> CrashPoints:
        return cls(os.environ.get(VARIABLE, NEVER))

    def reached(self, point: str) -> None:
        if point == self._point:
            self._times_left -= 1
            if self._times_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
