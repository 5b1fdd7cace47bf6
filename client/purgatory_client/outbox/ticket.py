"""`Ticket`: a caller's handle to a wait in the outbox, to get its result now or after a crash."""

from dataclasses import dataclass
from datetime import UTC, datetime

from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.results import OperationKind


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A wait, or a batch of waits, in the outbox.

    Attributes:
        tag: The tag it was submitted with; empty for a plain call.
        kind: The kind of its operations.
        operation_id: Its operation id, or the id of the first operation of a batch.
        operations: The number of operations.
        submitted_time: When it was first submitted, in UTC.
        entry: Internal.
    """

    tag: str
    kind: OperationKind
    operation_id: int
    operations: int
    submitted_time: datetime
    entry: Entry

    @property
    def is_batch(self) -> bool:
        """Whether it is a batch, whose results `result_many` returns."""
        return isinstance(self.entry, WaitBatch)


def ticket_of(entry: Entry, tag: str, submitted_time: float) -> Ticket:
    """The ticket of a wait that has its ids; `submitted_time` in seconds since the epoch."""
    when = datetime.fromtimestamp(submitted_time, UTC)
    return Ticket(tag, entry.kind, entry.operation_id, entry.count, when, entry)
