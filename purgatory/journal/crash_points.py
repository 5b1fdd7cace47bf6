"""Points at which tests/histories makes the daemon kill itself. A hook for tests, not a setting."""

import os
import signal
from typing import Final

BEFORE_BEGIN: Final = "before-begin"
BEFORE_COMMIT: Final = "before-commit"
AFTER_COMMIT: Final = "after-commit"
AFTER_TELLING: Final = "after-telling"
AFTER_CHECKPOINT: Final = "after-checkpoint"
AFTER_VACUUM: Final = "after-vacuum"
BEFORE_APPEND: Final = "before-append"
AFTER_APPEND: Final = "after-append"
AFTER_CLAIM: Final = "after-claim"
NEVER: Final = "never"
POINTS: Final = (BEFORE_BEGIN, BEFORE_COMMIT, AFTER_COMMIT, AFTER_TELLING, AFTER_CHECKPOINT, AFTER_VACUUM)
FLEET_POINTS: Final = (BEFORE_APPEND, AFTER_APPEND, BEFORE_COMMIT, AFTER_CLAIM)
"""Points of a daemon with a replicated log."""

VARIABLE: Final = "PURGATORY_TEST_CRASH_AT"
"""Environment variable of a daemon that should die, with a value as in `CrashPoints`."""


class CrashPoints:
    """'before-commit:3' kills the process before its third commit."""

    def __init__(self, where: str = NEVER) -> None:
        """Raises:
        ValueError: `where` is not a crash point.
        """
        self._point, _, times = where.partition(":")
        if self._point not in {NEVER, *POINTS, *FLEET_POINTS}:
            points = ", ".join({**dict.fromkeys(POINTS), **dict.fromkeys(FLEET_POINTS)})
            raise ValueError(f"not a crash point: {where}; use one of {points}, followed by :N for the Nth time")
        self._times_left = int(times or 1)

    @classmethod
    def from_environment(cls) -> "CrashPoints":
        return cls(os.environ.get(VARIABLE, NEVER))

    def reached(self, point: str) -> None:
        if point == self._point:
            self._times_left -= 1
            if self._times_left == 0:
                # Not `sys.exit`: no handler, `finally` or buffer may run, as in a crash.
                os.kill(os.getpid(), signal.SIGKILL)
