"""What is known of tests and mutants: what a test costs, how many mutants it has caught, and which."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.mutant import Mutant


@dataclass(frozen=True)
class Known:
    """What a judge is told. Tests by node id."""

    module: str = "whole"
    """What is broken."""
    costs: dict[str, float] = field(default_factory=dict)
    """CPU seconds of each test on the whole engine."""
    caught: dict[str, int] = field(default_factory=dict)
    """How many mutants a test has caught in this run."""
    last: str = ""
    """The test that caught this mutant the last time."""


class Memory:
    """Grows while mutants are judged, by several threads. `path` keeps from run to run what caught which mutant."""

    def __init__(self, costs: dict[str, float], path: Path) -> None:
        self._costs = costs
        self._path = path
        self._lock = threading.Lock()
        self._caught: Counter[str] = Counter()
        self._last = _read(path)

    def known_of(self, mutant: Mutant) -> Known:
        """What the judge of a mutant is to know now."""
        with self._lock:
            last = self._last.get(_name(mutant), "")
            return Known(mutant.module, self._costs, dict(self._caught), last if last in self._costs else "")

    def note(self, mutant: Mutant, caught_by: str) -> None:
        """A test has caught a mutant."""
        if caught_by in self._costs:
            with self._lock:
                self._caught[caught_by] += 1
                self._last[_name(mutant)] = caught_by

    def save(self) -> None:
        """Keeps for the next run what caught which mutant."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._last, indent=1, sort_keys=True), encoding="utf-8")


def _name(mutant: Mutant) -> str:
    return f"{mutant.module}: {mutant.name}"


def _read(path: Path) -> dict[str, str]:
    """Nothing where there is no such file, or it is something else."""
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(test) for name, test in read.items()} if isinstance(read, dict) else {}
