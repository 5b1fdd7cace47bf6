"""Places at which a test lets the daemon die as by a power switch. In real life none is set."""

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


class CrashPoints:
    """'before-commit:3' lets the process be killed when it comes before a commit for the third time."""

    def __init__(self, where: str = NEVER) -> None:
        """Raises ValueError for what is no point."""
        self._point, _, times = where.partition(":")
        if self._point not in {NEVER, *POINTS}:
            raise ValueError(f"should be one of {', '.join(POINTS)}, with :N for the Nth time")
        self._times_left = int(times or 1)

    def reached(self, point: str) -> None:
        """The process is at this point."""
        if point == self._point:
            self._times_left -= 1
            if self._times_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
