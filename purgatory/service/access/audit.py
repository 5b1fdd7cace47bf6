"""The audit log: a line of JSON for each refusal of access, for each act of an administrator, and for each new policy.

Lines go to the logger `purgatory.audit`. They never hold a token. Refusals are limited for each principal, so that one
who is refused all the time fills no disk; what was left out is counted in the next line.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

AUDIT: Final = logging.getLogger("purgatory.audit")
LINES_PER_SECOND: Final = 5.0
LINES_AT_ONCE_MAX: Final = 20.0
PRINCIPALS_KEPT: Final = 1_000
"""Principals whose pace is remembered; beyond them all start anew."""

UNAUTHENTICATED: Final = "unauthenticated"
NO_ROLE: Final = "role"
"""The caller has the role that a call needs on no name at all."""
RELOADED: Final = ("keys", "policy", "tokens")
NAME: Final = "name"
"""The caller does not have the role on what it named."""

AUDITED_CALL: Final[ContextVar[tuple[str, str]]] = ContextVar("AUDITED_CALL", default=("", ""))
"""The method that is being served, and its peer: refusals are found far below the calls that they are refusals of."""


class Audit(Collector):
    """Writes the audit log, and counts for Prometheus: refusals by reason, and files that were read again."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.refusals: Final = Counter(dict.fromkeys((UNAUTHENTICATED, NO_ROLE, NAME), 0))
        """By reason."""
        self.reloads: Final = Counter({(what, result): 0 for what in RELOADED for result in ("taken", "refused")})
        """By what was read ("policy", "tokens", "keys") and whether it was "taken" or "refused"."""
        self._clock_s: Final = clock_s
        self._paces: Final[dict[str, _Pace]] = {}

    def refused(self, reason: str, principal: str, *, role: str = "", name: str = "", count: int = 1) -> None:
        """Something was refused: `count` operations or events of a call, or all of it."""
        self.refusals[reason] += count
        pace = self._paces.get(principal)
        if pace is None:
            if len(self._paces) >= PRINCIPALS_KEPT:
                self._paces.clear()
            pace = self._paces[principal] = _Pace(self._clock_s())
        left_out = pace.take(self._clock_s())
        if left_out is not None:
            about = {"principal": principal, "role": role, "name": name}
            self._write("refused", reason=reason, **about, count=count, left_out=left_out)

    def acted(self, act: str, principal: str, name: str = "", count: int = 0) -> None:
        """An administrator has done something, or the policy was replaced."""
        self._write(act, principal=principal, name=name, count=count)

    def collect(self) -> Iterable[Metric]:
        refusals = CounterMetricFamily(
            "purgatory_access_refusals", "Calls, operations and events refused for want of proof or of a role.",
            labels=["reason"],
        )  # fmt: skip
        for reason, count in self.refusals.items():
            refusals.add_metric([reason], count)
        yield refusals
        reloads = CounterMetricFamily(
            "purgatory_access_reloads", "Changed policies, tokens and keys: taken over, or refused as unusable.",
            labels=["file", "result"],
        )  # fmt: skip
        for (what, result), count in sorted(self.reloads.items()):
            reloads.add_metric([what, result], count)
        yield reloads

    def _write(self, what: str, **values: object) -> None:
        call, peer = AUDITED_CALL.get()
        values |= {"call": call, "peer": peer}
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
