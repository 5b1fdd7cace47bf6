"""The audit log: a line of JSON for each refusal of access and for each act of an administrator.

Lines go to the logger `purgatory.audit`. They never hold a token. Refusals are limited for each principal, so that one
who is refused all the time fills no disk; what was left out is counted in the next line.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

AUDIT: Final = logging.getLogger("purgatory.audit")
LINES_PER_SECOND: Final = 5.0
LINES_AT_ONCE_MAX: Final = 20.0
PRINCIPALS_KEPT: Final = 1_000
"""Principals whose pace is remembered; beyond them all start anew."""


class Audit:
    """Writes the audit log, and counts refusals by reason."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.refusals: Final[Counter[str]] = Counter()
        """By reason: "unauthenticated", "role" or "name"."""
        self._clock_s: Final = clock_s
        self._paces: Final[dict[str, _Pace]] = {}

    def refused(
        self, reason: str, principal: str, call: str, *, role: str = "", name: str = "", count: int = 1
    ) -> None:
        """Something was refused: `count` operations or events of a call, or all of it."""
        self.refusals[reason] += count
        pace = self._paces.get(principal)
        if pace is None:
            if len(self._paces) >= PRINCIPALS_KEPT:
                self._paces.clear()
            pace = self._paces[principal] = _Pace(self._clock_s())
        left_out = pace.take(self._clock_s())
        if left_out is not None:
            about = {"principal": principal, "call": call, "role": role, "name": name}
            self._write("refused", reason=reason, **about, count=count, left_out=left_out)

    def acted(self, act: str, principal: str, name: str = "", count: int = 0) -> None:
        """An administrator has done something, or the policy was replaced."""
        self._write(act, principal=principal, name=name, count=count)

    def _write(self, what: str, **values: object) -> None:
        told = {"audit": what} | {key: value for key, value in values.items() if value not in ("", 0)}
        # ASCII only: names are strangers' words, and none of them may steer a terminal.
        AUDIT.warning("%s", json.dumps(told, ensure_ascii=True))


class _Pace:
    """A token bucket."""

    def __init__(self, now_s: float) -> None:
        self._left = LINES_AT_ONCE_MAX
        self._then_s = now_s
        self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """How many lines were left out since the last one that was not; None: this one is too."""
        self._left = min(LINES_AT_ONCE_MAX, self._left + (now_s - self._then_s) * LINES_PER_SECOND)
        self._then_s = now_s
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
