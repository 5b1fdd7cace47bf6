"""Finds waits that a living daemon should have answered long ago, so that none hangs for ever.

Costs nothing for each wait: what is pending is visited in rounds, a part each second.
"""

from collections.abc import Callable, Sequence
from typing import Final

from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import NoAnswer

TURN: Final = 1.0
"""Seconds between two parts of a round."""
TURNS_PER_ROUND: Final = 10
VISITS_MIN: Final = 1_000
"""Waits visited in a part, at least."""
GRACE: Final = 10.0
"""Seconds that an answer may be late, at least."""
GRACE_SHARE: Final = 0.1
"""And as a share of the timeout, if that is more."""


class OverdueWaits:
    """`waiting` returns everything that somebody waits for."""

    def __init__(self, waiting: Callable[[], Sequence[Entry]]) -> None:
        self._waiting: Final = waiting
        self._round: Sequence[Entry] = ()
        self._visited = 0
        self._suspects: set[Entry] = set()
        """What was overdue in this round, and in the one before: a result that has come may not have been read yet."""
        self._suspects_before: set[Entry] = set()

    def visit(self, due_at: Callable[[Entry], float], heard_at: float) -> list[Entry]:
        """Visit a part. Returns what is overdue: was so in the round before, by what `due_at` says, and the daemon has
        been heard since (at `heard_at`, the last time): one that is silent is noticed in other ways.
        """
        if self._visited >= len(self._round):
            self._round, self._visited = self._waiting(), 0
            self._suspects_before, self._suspects = self._suspects, set()
        start = self._visited
        self._visited += max(VISITS_MIN, -(-len(self._round) // TURNS_PER_ROUND))
        overdue: list[Entry] = []
        for entry in self._round[start : self._visited]:
            if due_at(entry) < heard_at:
                self._suspects.add(entry)
                if entry in self._suspects_before:
                    overdue.append(entry)
        return overdue


def due_after(entry: Entry, timeout_default: float | None) -> float | None:
    """Seconds after which the answer to a wait, or the last one to a batch, is overdue; None: nobody knows."""
    timeout_ms = entry.longest_timeout_ms if isinstance(entry, WaitBatch) else entry.timeout_ms
    timeout = timeout_default if timeout_ms is None else timeout_ms / 1_000
    return None if timeout is None else timeout + max(GRACE, timeout * GRACE_SHARE)


def no_answer() -> NoAnswer:
    return NoAnswer(
        "the daemon never answered, though the timeout of this wait passed long ago; whether it was registered is not "
        "known"
    )
