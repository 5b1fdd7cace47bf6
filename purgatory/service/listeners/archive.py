"""What the host tells of its engine calls so that they can be kept: the protocol of the archive, and the one that keeps
nothing. `archive_recorder` is the other.

Calls are told in the order in which the engine had them: first the call, then (`ended`) what it ended, then `finish`.
Nothing here blocks. What is told is copied: it may change afterwards.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.completions import Completions
from purgatory.service.sessions.session import Session


class ArchiveStatistics(NamedTuple):
    """What became of the rows of this run; those by table have a number for each table."""

    rows_kept: dict[str, int]
    """Rows that lie in files."""
    rows_dropped: dict[str, int]
    """Rows that are lost: there was no room for them, or they could not be made."""
    rows_waiting: int
    """Handed over, and not made into columns yet."""
    files: int
    bytes: int
    errors: int
    """Times that files could not be written, or rows not be made."""


class Archive(Protocol):
    """What the host tells. A session of None means: unary waits. `now_ms` is what the engine was given."""

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""

    def why_closed(self) -> str:
        """Why nothing may be admitted now, so that nothing is lost; empty: everything may."""

    def statistics(self) -> ArchiveStatistics | None:
        """What became of the rows; None where nothing is kept."""

    def registered(
        self, session: Session | None, kind: int, batch: OperationBatch, receipt: RegisterReceipt, now_ms: int
    ) -> None:
        """A batch of registrations."""

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt, now_ms: int) -> None:
        """A slice of a batch of events."""

    def cancelled(self, session: Session | None, operation_ids: list[int], ended: int, now_ms: int) -> None:
        """Some operations were cancelled by id."""

    def cancelled_session(self, session: Session, ended: int, now_ms: int) -> None:
        """All of a session was cancelled."""

    def cancelled_partition(self, name: PartitionName, ended: int, now_ms: int) -> None:
        """All that waited on a partition was cancelled."""

    def cancelled_key(self, key: str, ended: int, now_ms: int) -> None:
        """All that waited on a key was cancelled."""

    def shut_down(self, ended: int, now_ms: int) -> None:
        """A slice of what was pending ended because the daemon ends."""

    def expired(self, now_ms: int) -> None:
        """The clock was advanced, and something expired."""

    def ended(self, session: Session | None, completions: Completions) -> None:
        """What the call ended, of one owner."""

    def finish(self) -> None:
        """All that the call ended was told. Harmless when there was no call."""


class NoArchive:
    """An `Archive` that keeps nothing."""

    @property
    def keeps(self) -> bool:
        """No."""
        return False

    def why_closed(self) -> str:
        """Everything may be admitted."""
        return ""

    def statistics(self) -> ArchiveStatistics | None:
        """There are none."""
        return None

    def registered(
        self, session: Session | None, kind: int, batch: OperationBatch, receipt: RegisterReceipt, now_ms: int
    ) -> None:
        """Nothing to do."""

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt, now_ms: int) -> None:
        """Nothing to do."""

    def cancelled(self, session: Session | None, operation_ids: list[int], ended: int, now_ms: int) -> None:
        """Nothing to do."""

    def cancelled_session(self, session: Session, ended: int, now_ms: int) -> None:
        """Nothing to do."""

    def cancelled_partition(self, name: PartitionName, ended: int, now_ms: int) -> None:
        """Nothing to do."""

    def cancelled_key(self, key: str, ended: int, now_ms: int) -> None:
        """Nothing to do."""

    def shut_down(self, ended: int, now_ms: int) -> None:
        """Nothing to do."""

    def expired(self, now_ms: int) -> None:
        """Nothing to do."""

    def ended(self, session: Session | None, completions: Completions) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""
