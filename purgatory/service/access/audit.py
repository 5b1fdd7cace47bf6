"""The audit log: one line of JSON for each refused access, administrative action and new policy.

Lines go to the logger `purgatory.audit` and never contain a token. Refusals are rate-limited per principal, so that
repeated refusals cannot fill the disk; the next line contains the number of lines left out.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from purgatory.service.errors import RpcError, permission_denied
from purgatory.service.histogram import counters

AUDIT: Final = logging.getLogger("purgatory.audit")
LINES_PER_SECOND: Final = 5.0
LINES_AT_ONCE_MAX: Final = 20.0
PRINCIPALS_KEPT: Final = 1_000
"""Number of rate limiters kept; when it is exceeded, all are reset."""

UNAUTHENTICATED: Final = "unauthenticated"
NO_ROLE: Final = "role"
"""The caller does not have the required role on any name."""
RELOADED: Final = ("keys", "policy", "tokens")
NAME: Final = "name"
"""The caller does not have the required role on a name in its request."""

AUDITED_CALL: Final[ContextVar[tuple[str, str]]] = ContextVar("AUDITED_CALL", default=("", ""))
"""The method being served and its peer. A context variable, because refusals occur far below the call handler."""


class Audit(Collector):
    """Writes the audit log, and counts refusals (by reason) and reloaded files for Prometheus."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.refusals: Final = Counter(dict.fromkeys((UNAUTHENTICATED, NO_ROLE, NAME), 0))
        """By reason."""
        self.reloads: Final = Counter({(what, result): 0 for what in RELOADED for result in ("taken", "refused")})
        """By file ("policy", "tokens", "keys") and result ("taken" or "refused")."""
        self._clock_s: Final = clock_s
        self._paces: Final[dict[str, _Pace]] = {}

    def refused(self, reason: str, principal: str, *, role: str = "", name: str = "", count: int = 1) -> None:
        """Record a refusal of `count` operations or events of a call, or of the whole call."""
        self.refusals[reason] += count
        pace = self._paces.get(principal)
        if pace is None:
            if len(self._paces) >= PRINCIPALS_KEPT:
                # At the limit all limiters are reset, so inventing principals buys at most one burst for each thousand
                # of them.
                self._paces.clear()
            pace = self._paces[principal] = _Pace(self._clock_s())
        left_out = pace.take(self._clock_s())
        if left_out is not None:
            about = {"principal": principal, "role": role, "name": name}
            self._write("refused", reason=reason, **about, count=count, left_out=left_out)

    def denied(self, principal: str, role: str, name: str) -> RpcError:
        """Record that the principal lacks a role on a name in its request, and return the refusal."""
        self.refused(NAME, principal, role=role, name=name)
        return permission_denied(role, name)

    def acted(self, act: str, principal: str, name: str = "") -> None:
        """Record an administrative action or a new policy."""
        self._write(act, principal=principal, name=name)

    def collect(self) -> Iterable[Metric]:
        text = "Calls, operations and events refused for a missing credential or role."
        yield counters("purgatory_access_refusals", text, ["reason"], self.refusals.items())
        text = "Reloads of changed policies, tokens and keys: applied or refused."
        yield counters("purgatory_access_reloads", text, ["file", "result"], sorted(self.reloads.items()))

    def _write(self, what: str, **values: object) -> None:
        call, peer = AUDITED_CALL.get()
        values |= {"call": call, "peer": peer}
        told = {"audit": what} | {key: value for key, value in values.items() if value not in ("", 0)}
        # ASCII only: names come from callers, and must not inject control sequences into a terminal.
        AUDIT.warning("%s", json.dumps(told, ensure_ascii=True))


class _Pace:
    """A token bucket."""

    def __init__(self, now_s: float) -> None:
        self._left = LINES_AT_ONCE_MAX
        self._then_s = now_s
        self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """Return the number of lines left out since the last one written, or None if this one must be left out."""
        self._left = min(LINES_AT_ONCE_MAX, self._left + (now_s - self._then_s) * LINES_PER_SECOND)
        self._then_s = now_s
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
