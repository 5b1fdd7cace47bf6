"""What a caller holds of a wait that is in the outbox: enough to ask for its result, now or after a crash."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from purgatory_client.many import WaitColumns
from purgatory_client.results import OperationKind
from purgatory_client.waits import Wait


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A wait, or a batch of waits, in the outbox. `tag` is the caller's own name for it, `operation_id` the session's
    for it or for the first of the batch; `submitted_time` is when it was first submitted.
    """

    tag: str
    kind: OperationKind
    operation_id: int
    operations: int
    submitted_time: datetime
    entry: Wait | WaitColumns
    """The wait itself; nothing that callers need."""

    @property
    def is_batch(self) -> bool:
        """True: made by `submit_many`, to be asked for by `result_many`."""
        return isinstance(self.entry, WaitColumns)


def ticket_of(entry: Wait | WaitColumns, tag: str, submitted_time: float) -> Ticket:
    """The ticket of a wait that has its ids. Wall clock, seconds."""
    when = datetime.fromtimestamp(submitted_time, UTC)
    if isinstance(entry, WaitColumns):
        return Ticket(tag, entry.kind, entry.first_id, entry.count, when, entry)
    return Ticket(tag, entry.kind, entry.operation_id, 1, when, entry)


def first_id(entry: Wait | WaitColumns) -> int:
    """The id of the wait, or of the first of the batch; 0: it has none yet."""
    return entry.first_id if isinstance(entry, WaitColumns) else entry.operation_id
