"""Which results have arrived, and when to acknowledge them.

Results carry consecutive sequence numbers and are sent again after a reconnect until they are acknowledged. The highest
number received is enough to recognise repeats. An acknowledgement costs a message and only frees memory of the daemon,
so it is sent after `results_max` results or `DELAY` seconds, whichever comes first.
"""

from typing import Final

from purgatory_client.errors import ProtocolError
from purgatory_client.wire import sizes

DELAY: Final = 0.5
"""Seconds that an acknowledgement may be delayed."""


class ResultSequence:
    """The results of one session. `last`: the highest sequence number that has arrived; 0: none."""

    def __init__(self) -> None:
        self.results_max = sizes.UNACKNOWLEDGED_MAX
        self.last = 0
        self._acknowledged = 0
        self.due_at: float | None = None
        """When an acknowledgement is due (monotonic seconds); None: there is nothing to acknowledge."""
        self._restarted = False

    def restart(self) -> None:
        """Restart the numbering at the next batch's first number, because the daemon has dropped the session or the
        number of the last result is unknown.
        """
        self.last = self._acknowledged = 0
        self.due_at = None
        self._restarted = True

    def limit(self, unacknowledged_max: int) -> None:
        """Set the number of unacknowledged results at which the daemon refuses registrations."""
        self.results_max = max(1, min(sizes.UNACKNOWLEDGED_MAX, unacknowledged_max // 2))

    def opened(self) -> None:
        """Record that a connection was opened with `last`, which acknowledges all results up to it."""
        self._acknowledged = self.last
        self.due_at = None

    def arrive(self, first: int, count: int, now: float) -> int:
        """Record results `first` to `first + count - 1`. Returns how many of them, from the first on, are repeats.

        Raises ProtocolError if earlier results are missing, because no later message will contain them.
        """
        if self._restarted:
            # After a restart any first number is accepted, once.
            self.last, self._restarted = first - 1, False
        # A gap cannot be closed later: the daemon resends only from the last acknowledged number of an opening.
        if first > self.last + 1:
            raise ProtocolError(f"results {self.last + 1} to {first - 1} are missing; received {first}")
        repeats = min(count, self.last + 1 - first)
        self.last = max(self.last, first + count - 1)
        # Counted from the first unacknowledged result, so a steady flow of results cannot postpone it.
        if self.due_at is None and self.last > self._acknowledged:
            self.due_at = now + DELAY
        return repeats

    def acknowledge(self, now: float, at_once: bool = False) -> int | None:
        """The sequence number to acknowledge now; None: no acknowledgement is due yet."""
        unacknowledged = self.last - self._acknowledged
        if not unacknowledged or self.due_at is None:
            return None
        if not (at_once or self.is_due or now >= self.due_at):
            return None
        # Recorded when it is about to be sent. If that fails, the next opening acknowledges the same number.
        self._acknowledged, self.due_at = self.last, None
        return self.last

    @property
    def is_due(self) -> bool:
        """Whether so many results are unacknowledged that the acknowledgement should not wait for its time."""
        return self.last - self._acknowledged >= self.results_max
