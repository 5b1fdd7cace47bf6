"""Which results have arrived, and when to acknowledge them.

Results carry consecutive sequence numbers and are sent again after a reconnect until they are acknowledged. What has
arrived is one number, so a repeat is recognised by comparison. An acknowledgement costs a message and only frees memory
of the daemon, so it is sent after `results_max` results or `DELAY` seconds, whichever comes first.
"""

from typing import Final

from purgatory_client.errors import ProtocolError

DELAY: Final = 0.5
"""Seconds that an acknowledgement may be delayed."""
RESULTS_MAX: Final = 5_000
"""Results after which the acknowledgement is not delayed; at most half of what the daemon keeps unacknowledged."""


class ResultSequence:
    """The results of one session. `last`: the highest sequence number that has arrived; 0: none."""

    def __init__(self) -> None:
        self.results_max = RESULTS_MAX
        self.last = 0
        self._acknowledged = 0
        self._due_at: float | None = None
        self._restarted = False

    def restart(self) -> None:
        """Count again from wherever the next batch begins: the daemon has forgotten the session, or the number of the
        last result is not known.
        """
        self.last = self._acknowledged = 0
        self._due_at = None
        self._restarted = True

    def limit(self, unacknowledged_max: int) -> None:
        """Set how many unacknowledged results the daemon keeps before it refuses registrations."""
        self.results_max = max(1, min(RESULTS_MAX, unacknowledged_max // 2))

    def opened(self) -> None:
        """Note that a connection was opened with `last`, which acknowledges everything up to it."""
        self._acknowledged = self.last
        self._due_at = None

    def arrive(self, first: int, count: int, now: float) -> int:
        """Note results `first` to `first + count - 1`; returns how many of them, from the first on, are repeats.

        Raises ProtocolError when results before them are missing: no later message will bring these.
        """
        if self._restarted:
            self.last, self._restarted = first - 1, False
        if first > self.last + 1:
            raise ProtocolError(f"results {self.last + 1} to {first - 1} never came; next was {first}")
        repeats = min(count, self.last + 1 - first)
        self.last = max(self.last, first + count - 1)
        if self._due_at is None and self.last > self._acknowledged:
            self._due_at = now + DELAY
        return repeats

    def acknowledge(self, now: float, at_once: bool = False) -> int | None:
        """The sequence number to acknowledge now; None: nothing is due yet."""
        unacknowledged = self.last - self._acknowledged
        if not unacknowledged or self._due_at is None:
            return None
        if not (at_once or unacknowledged >= self.results_max or now >= self._due_at):
            return None
        self._acknowledged, self._due_at = self.last, None
        return self.last

    @property
    def due_at(self) -> float | None:
        """When an acknowledgement falls due (monotonic seconds); None: nothing to acknowledge."""
        return self._due_at
