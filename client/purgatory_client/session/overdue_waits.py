"""Finds waits that a connected daemon should have answered long ago, so that no wait hangs forever.

There is no timer per wait: pending waits are visited in rounds, a part of the round each second.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import NoAnswer

TURN: Final = 1.0
"""Seconds between two parts of a round."""
TURNS_PER_ROUND: Final = 10
VISITS_MIN: Final = 1_000
"""Minimum number of waits visited in a part."""
GRACE: Final = 10.0
"""Minimum number of seconds by which an answer may be late."""
GRACE_SHARE: Final = 0.1
"""Allowed lateness as a share of the timeout, if that is longer than `GRACE`."""


class OverdueWaits:
    """`waiting` returns all waits that have not ended."""

    def __init__(self, waiting: Callable[[], Sequence[Entry]]) -> None:
        self._waiting: Final = waiting
        self._round: Sequence[Entry] = ()
        self._visited = 0
        self._suspects: set[Entry] = set()
        """Waits found overdue in this round. They are reported in the next one, as a received result may not have
        been read yet.
        """
        self._suspects_before: set[Entry] = set()

    def visit(self, due_at: Callable[[Entry], float], heard_at: float) -> list[Entry]:
        """Visit the next part of a round and return its overdue waits.

        A wait is overdue if it was due (according to `due_at`) before the daemon's last message (at `heard_at`) both
        now and in the previous round. A silent daemon is detected elsewhere, by the watchdog of the connection.
        """
        if self._visited >= len(self._round):
            self._round, self._visited = self._waiting(), 0
            # Two full rounds are compared, so a wait has at least the time of one round to have its result read.
            self._suspects_before, self._suspects = self._suspects, set()
        start = self._visited
        # Rounded up: otherwise the rest of a division would make an eleventh part.
        self._visited += max(VISITS_MIN, -(-len(self._round) // TURNS_PER_ROUND))
        overdue: list[Entry] = []
        for entry in self._round[start : self._visited]:
            if due_at(entry) < heard_at:
                self._suspects.add(entry)
                if entry in self._suspects_before:
                    overdue.append(entry)
        return overdue


def due_after(entry: Entry, timeout_default: float | None) -> float | None:
    """Seconds after which the answer to a wait, or the last answer to a batch, is overdue. None: unknown."""
    timeout_ms = entry.longest_timeout_ms if isinstance(entry, WaitBatch) else entry.timeout_ms
    timeout = timeout_default if timeout_ms is None else timeout_ms / 1_000
    return None if timeout is None else timeout + max(GRACE, timeout * GRACE_SHARE)


def timeout_end(entry: Entry) -> float:
    """When the timeout of a wait, or the longest of a batch, is over; without one, never."""
    timeout_ms = entry.longest_timeout_ms if isinstance(entry, WaitBatch) else entry.timeout_ms
    return math.inf if timeout_ms is None else entry.submitted_at + timeout_ms / 1_000


def no_answer() -> NoAnswer:
    return NoAnswer(
        "the daemon did not answer long after the timeout of this wait; whether it was registered is not known"
    )
