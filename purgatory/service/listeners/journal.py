"""What the host tells of its work so that nothing it has answered is forgotten: the protocol of the journal, and the
one that forgets. `journal_keeping` is the other.

What leaves the daemon because of a change is given to `when_durable`, or waits for `durable`, after the change was
told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from purgatory.engine.batches import EventBatch, EventsReceipt, Refusal
from purgatory.engine.completions import Completions
from purgatory.service.sessions.session import Session

NONE: Final = 1
SYNC: Final = 2
ASYNC: Final = 3
"""What a receipt is worth: kept in memory, on disk before it is answered, on disk soon after. As on the wire."""


class JournalStatistics(NamedTuple):
    """How the journal fares."""

    groups: int
    """Transactions of this life of the daemon."""
    errors: int
    bytes: int
    registrations: int
    """Rows that hold pending operations."""
    results: int
    """Rows that hold unacknowledged results."""
    recovered: int
    """Operations of the daemon before that wait again."""


class Journal(Protocol):
    """What the host tells. Nothing here blocks."""

    @property
    def durability(self) -> int:
        """What a receipt is worth: NONE, SYNC or ASYNC."""

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""

    def why_closed(self) -> Refusal | None:
        """Why nothing may be admitted now; None: everything may. The refusal's index means nothing."""

    def statistics(self) -> JournalStatistics | None:
        """How it fares; None where nothing is kept."""

    def changed(self, session: Session) -> None:
        """Operations were registered in a session, or it was opened."""

    def acknowledged(self, session: Session) -> None:
        """Results of a session were acknowledged. Nobody waits for that to be durable: who resumes says what it has."""

    def ended(self, session: Session, completions: Completions) -> None:
        """Operations of a session have ended. To be told before their results get their sequence numbers."""

    def refused(self, session: Session, refused: Sequence[tuple[Refusal, int, int]]) -> None:
        """Registrations were refused, each with operation id and kind. To be told before they get their numbers."""

    def dropped(self, session: Session) -> None:
        """A session is gone, with all that it had."""

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """A slice of a batch of events was applied."""

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Calls it once all that was told so far is durable; at once if nothing is to be waited for."""

    def tick(self) -> None:
        """Time has passed."""

    async def durable(self) -> None:
        """Returns once all that was told so far is durable."""


class NoJournal:
    """A `Journal` that keeps nothing."""

    @property
    def durability(self) -> int:
        """In memory only."""
        return NONE

    @property
    def keeps(self) -> bool:
        """No."""
        return False

    def why_closed(self) -> Refusal | None:
        """Everything may be admitted."""
        return None

    def statistics(self) -> JournalStatistics | None:
        """There are none."""
        return None

    def changed(self, session: Session) -> None:
        """Nothing to do."""

    def acknowledged(self, session: Session) -> None:
        """Nothing to do."""

    def ended(self, session: Session, completions: Completions) -> None:
        """Nothing to do."""

    def refused(self, session: Session, refused: Sequence[tuple[Refusal, int, int]]) -> None:
        """Nothing to do."""

    def dropped(self, session: Session) -> None:
        """Nothing to do."""

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """Nothing to do."""

    def when_durable(self, answer: Callable[[], None]) -> None:
        """At once."""
        answer()

    def tick(self) -> None:
        """Nothing to do."""

    async def durable(self) -> None:
        """At once."""
