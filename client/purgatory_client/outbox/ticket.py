"""`Ticket`: what a caller holds of a wait in the outbox, to ask for its result now or after a crash."""

from dataclasses import dataclass
from datetime import UTC, datetime

from purgatory_client.many import WaitColumns
from purgatory_client.results import OperationKind
from purgatory_client.waits import Wait


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A wait, or a batch of waits, in the outbox.

    Attributes:
        tag: What it was submitted with; empty for a plain call.
        kind: The kind of its operations.
        operation_id: The session's id for it, or for the first operation of a batch.
        operations: How many operations it has.
        submitted_time: When it was first submitted, in UTC.
        entry: Internal.
    """

    tag: str
    kind: OperationKind
    operation_id: int
    operations: int
    submitted_time: datetime
    entry: Wait | WaitColumns

    @property
    def is_batch(self) -> bool:
        """True: a batch, whose results `result_many` gives."""
        return isinstance(self.entry, WaitColumns)


def ticket_of(entry: Wait | WaitColumns, tag: str, submitted_time: float) -> Ticket:
    """The ticket of a wait that has its ids; `submitted_time` in seconds since the epoch."""
    when = datetime.fromtimestamp(submitted_time, UTC)
    if isinstance(entry, WaitColumns):
        return Ticket(tag, entry.kind, entry.first_id, entry.count, when, entry)
    return Ticket(tag, entry.kind, entry.operation_id, 1, when, entry)


def first_id(entry: Wait | WaitColumns) -> int:
    """The id of a wait, or of the first operation of a batch; 0: none was given yet."""
    return entry.first_id if isinstance(entry, WaitColumns) else entry.operation_id
