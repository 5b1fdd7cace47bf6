"""What the journal collects on the event loop for one group, until that is durable."""

from collections.abc import Callable
from typing import Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.journal.group import RefusedRows
from purgatory.service.sessions.session import Session


class PendingChanges:
    """Changes of a session since the last group was sealed."""

    def __init__(self, session: Session) -> None:
        self.known: Final = session.journaled_operation_id
        self.results: Final[list[Completions | RefusedRows]] = []
        self.count = 0
        self.progressed: Final[set[int]] = set()
        self.dropped = False


class Generation:
    """What is collected for one group. It belongs to the group until that is durable."""

    def __init__(self) -> None:
        self.sessions: Final[dict[Session, PendingChanges]] = {}
        self.partitions: Final[dict[PartitionName, None]] = {}
        self.keys: Final[dict[str, None]] = {}
        self.dead_letters: Final[dict[int, bytes]] = {}
        self.answers: Final[list[Callable[[], None]]] = []
        """Answers that wait for the group."""
        self.releases: Final[list[tuple[Session, int]]] = []
        """(session, highest sequence number, in the journal's numbering, of its results in the group)."""
        self.change_count = 0
        self.since_s: float | None = None
        """Time of the first change on the loop's clock, seconds; None: there is nothing to commit."""
