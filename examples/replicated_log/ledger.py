"""A ledger of waits: what began must end, once. It is laid beside the daemon's own counters at the end of the run."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Final

GIVEN_UP: Final = "given up"
"""Whoever asked has gone, so it was cancelled. The daemon counts it as cancelled, or as what it was just before."""


class WaitEndedTwice(Exception):
    """A wait that had ended already has ended again."""


class Ledger:
    """Which waits began, and how each ended: by kind and outcome, with the milliseconds from asking to answer.

    A kind is the daemon's name for it, with who asked behind a slash where that says more: "fetch/follower".
    """

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended_ms: dict[tuple[str, str], list[float]] = {}
        self._numbers = itertools.count()
        self._open: dict[int, str] = {}

    def start(self, kind: str) -> int:
        """Notes a new wait and returns its number."""
        number = next(self._numbers)
        self._open[number] = kind
        self.started[kind] += 1
        return number

    def end(self, number: int, outcome: str, waited_ms: float) -> None:
        """Notes the end of a wait. WaitEndedTwice: it had one."""
        kind = self._open.pop(number, None)
        if kind is None:
            raise WaitEndedTwice(f"wait {number} has ended twice, now as {outcome}")
        self.ended_ms.setdefault((kind, outcome), []).append(round(waited_ms, 3))

    def ended(self, kind: str, outcome: str) -> int:
        """How many waits of this kind ended so."""
        return len(self.ended_ms.get((kind, outcome), ()))

    @property
    def open_count(self) -> int:
        """Waits without an end so far."""
        return len(self._open)

    def to_json(self) -> bytes:
        """For another process; only sensible when nothing is open."""
        ended = [[kind, outcome, waits] for (kind, outcome), waits in self.ended_ms.items()]
        return json.dumps({"started": self.started, "ended": ended, "open": self.open_count}).encode()

    def add_json(self, data: bytes) -> None:
        """Adds another process's ledger to this one."""
        other = json.loads(data)
        self.started.update(other["started"])
        for kind, outcome, waits in other["ended"]:
            self.ended_ms.setdefault((kind, outcome), []).extend(waits)
        for _ in range(other["open"]):
            self._open[next(self._numbers)] = "open in another process"
