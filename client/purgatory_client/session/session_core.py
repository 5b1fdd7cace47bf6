"""One session with the daemon, without any I/O: waits and wire messages in, wire messages and ended waits out.

Time is an argument (monotonic seconds). These are the rules of a session:

- An operation gets its id when it is first put into a batch. Ids rise, and an operation keeps its id over reconnects.
- Waits that are submitted while batches are in flight go out together, one batch for each kind. At most `WINDOW`
  batches wait for their receipt: under load batches grow by themselves, and in an idle session nothing is delayed.
- After a reconnect the daemon says the highest id it knows, and everything above it is sent again. A wait submitted
  before a connection was lost, or before an attempt to connect failed, goes out with its remaining time.
- When the daemon no longer knows the session (it has restarted, or the session's time to live is over), everything
  pending is registered again under the same ids, with its remaining time. A wait without a timeout of its own gets the
  daemon's default once more. The sequence number of the last result is sent with the incarnation that it belongs to, so
  it acknowledges nothing in another one.
- A repeated result is dropped by its sequence number, and a result that nobody waits for by its id. So each wait ends
  once.
- A wait whose id somebody else has used in this session fails at once, since no result would ever come for it.
- A wait that a living daemon has not answered long after its timeout fails too (`fail_overdue`).
- A cancelled wait is forgotten here at once; the cancel is repeated until the daemon has answered it.
- No batch is larger than the daemon's `message_bytes_max`. One that ends the stream all the same, as a proxy in between
  accepts less, is halved; an operation that is too large by itself fails.
- With an outbox (`restore`), waits get their ids when they are staged for its file (`stage`), and only what has been
  written is sent.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import LimitExceeded, OperationIdInUse
from purgatory_client.results import Outcome
from purgatory_client.session.overdue_waits import GRACE, OverdueWaits, due_after, no_answer
from purgatory_client.session.pending_waits import (
    OPERATIONS_PER_CHUNK_MAX,
    Ended,
    PendingWaits,
    WaitChunk,
    batch_key,
    cut_into_chunks,
)
from purgatory_client.session.sequence import ResultSequence
from purgatory_client.wire.decode_results import ResultsArrived, arrived_row, refusal_error
from purgatory_client.wire.encode_waits import fill_with_many, fill_with_waits

WINDOW: Final = 8
"""Batches that may wait for their receipt at a time."""
CANCELS_PER_MESSAGE_MAX: Final = 10_000
OPERATION_ID_MAX: Final = 2**64 - 1
MESSAGE_BYTES_MAX: Final = 4 << 20
"""The largest message that a daemon accepts that states no limit: gRPC's own default."""


class SessionCore:
    """The state of one session. `opened`: the daemon has opened the current connection. `going_away`: why the daemon is
    about to end it.
    """

    def __init__(self, session_id: str, pending_max: int) -> None:
        self.session_id: Final = session_id
        self.pending_max: Final = pending_max
        self.opened = False
        self.incarnation = ""
        """Of the session when it was last opened; empty: not known."""
        self.going_away: int | None = None
        self.heartbeat_interval = 1.0
        self._table = PendingWaits()
        self._unsent: dict[object, dict[Entry, None]] = {}
        """By `batch_key`: what can share a batch."""
        self._unsent_count = 0
        self._plan: deque[WaitChunk] = deque()
        self._unreceipted: dict[int, WaitChunk] = {}
        self._next_batch_id = 1
        self._chunk_max = OPERATIONS_PER_CHUNK_MAX
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._batch_bytes_max = MESSAGE_BYTES_MAX
        """Batches of several operations are split above this: as above, or less after one was refused for its size."""
        self._too_large: list[Ended] = []
        self._cancels: list[int] = []
        self._cancelling: dict[int, None] = {}
        self._sequence = ResultSequence()
        self._known = False
        self._lost_at = -1.0
        self._sent_at = 0.0
        self._overdue = OverdueWaits(self.waiting)
        self._timeout_default: float | None = None
        self._opened_at = 0.0
        self._receipt_at = 0.0
        self._receipted_id = 0
        """Everything up to this id has reached the daemon."""
        self._ending = False
        self._has_outbox = False
        self.written_id = OPERATION_ID_MAX
        """With an outbox: the highest id that is in its file. Nothing above it is sent."""

    @property
    def pending(self) -> int:
        """Operations that somebody waits for, and cancels that the daemon has not answered."""
        return self._unsent_count + self._table.count + len(self._cancelling)

    # For callers

    def submit(self, wait: Entry, now: float) -> None:
        """Accept a wait, to be sent with the next batch. Raises LimitExceeded at the limit of pending operations."""
        if self.pending + wait.count > self.pending_max:
            raise LimitExceeded(
                f"{self.pending} operations are pending in this client and {wait.count} more would pass its limit of "
                f"{self.pending_max} (pending_max)"
            )
        wait.submitted_at = now
        self._unsent_count += wait.count
        self._unsent.setdefault(batch_key(wait), {})[wait] = None

    def cancel(self, wait: Entry) -> None:
        """Forget a wait whose caller has gone, and cancel it at the daemon if it was sent.

        One that is not pending here is ignored: it may have ended, or been drained, while its caller was cancelled.
        """
        if self._table.take(wait):
            operation_ids = _pending_ids(wait)
            self._cancelling |= dict.fromkeys(operation_ids)
            self._cancels.extend(operation_ids)
        elif wait in (queue := self._unsent.get(batch_key(wait), {})):
            del queue[wait]
            self._unsent_count -= wait.count

    def end(self) -> None:
        """Send outstanding cancels and the acknowledgement without delay: the session is about to be left."""
        self._ending = True

    @property
    def ended(self) -> bool:
        """True: the session is being left, and there is nothing more to send or to receive."""
        return self._ending and not self.pending and self._sequence.due_at is None

    @property
    def is_used_up(self) -> bool:
        """Whether no wait can get an id any more, since somebody else has registered the highest there is."""
        return self._table.is_used_up

    def waiting(self) -> list[Entry]:
        """Everything that somebody waits for."""
        return [*self._table.entries(), *chain.from_iterable(self._unsent.values())]

    def fail_overdue(self, heard_at: float) -> list[Ended]:
        """End waits that the daemon should have answered long ago, and return them.

        To be called every `overdue_waits.TURN` seconds. `heard_at`: when the daemon last sent anything.
        """
        ended: list[Ended] = []
        if not self.opened:
            return ended
        for wait in self._overdue.visit(self._due_at, heard_at):
            error = no_answer()
            if wait in self._table:
                for operation_id in _pending_ids(wait):
                    self._table.refuse(operation_id, error, ended)
            elif wait in (queue := self._unsent.get(batch_key(wait), {})):
                del queue[wait]
                self._unsent_count -= wait.count
                ended.append((wait, error))
        return ended

    def _due_at(self, wait: Entry) -> float:
        """When the answer is overdue. What the daemon does not have yet had to wait while it was answering others."""
        after = due_after(wait, self._timeout_default)
        if after is None:
            return math.inf
        is_receipted = wait.operation_id > 0 and wait.operation_id + wait.count - 1 <= self._receipted_id
        reached_at = self._opened_at if is_receipted else self._receipt_at
        return max(wait.submitted_at + after, reached_at + GRACE)

    def take_too_large(self) -> list[Ended]:
        """The waits that could not be sent since the last call, as each of them is larger than a message."""
        ended, self._too_large = self._too_large, []
        return ended

    def message_refused(self) -> bool:
        """Note that the daemon, or a proxy, ended the stream for the size of a message, before `connection_lost`.

        It must have been the largest batch without a receipt. Smaller ones are sent from now on; if it was a single
        operation, that fails. Returns False if there is no such batch.
        """
        if not self._unreceipted:
            return False
        chunk = max(self._unreceipted.values(), key=lambda chunk: chunk.size_bytes)
        self._batch_bytes_max = chunk.size_bytes * 2 // 3  # which its halves fit
        if chunk.halves() is None:
            self._refuse_too_large(chunk, "it was refused for its size")
        return True

    def _refuse_too_large(self, chunk: WaitChunk, reason: str) -> None:
        error = LimitExceeded(f"the operation needs a message of {chunk.size_bytes} bytes; {reason}: split it")
        self._table.refuse(chunk.last_id, error, self._too_large)

    def drain(self) -> list[Entry]:
        """Forget everything that somebody waits for, and return it, without a word to the daemon."""
        drained = self.waiting()
        self._table.clear()
        self._unsent.clear()
        self._unsent_count = 0
        self._cancelling.clear()
        self._cancels.clear()
        self._plan.clear()
        return drained

    # For the outbox

    def restore(self, entries: Sequence[Entry], next_id: int, now: float, incarnation: str = "") -> None:
        """Resume what an outbox holds of the session, in the order of ids.

        Results count from wherever the daemon's next batch says: the file does not keep the number of the last one.
        Setting the time of the last loss makes restored waits go out with their remaining time, by the wall clock.
        """
        self._has_outbox = True
        for entry in entries:
            self._table.start_after(entry.operation_id - 1)
            self._table.add(entry)
        self._table.start_after(next_id - 1)
        self.written_id = next_id - 1
        self.incarnation = incarnation
        self._sequence.restart()
        self._lost_at = now

    def replay(self, batch: wire.ResultBatch) -> list[Ended]:
        """End waits by results that the outbox has stored."""
        ended: list[Ended] = []
        for arrived in _arrived(batch):
            self._table.end(arrived, 0, ended)
        return ended

    def check_names(self, batch: wire.ResultBatch) -> None:
        """Raise OutboxCopied if a result is of other partitions or keys than the wait with its id."""
        for arrived in _arrived(batch):
            self._table.check_names(arrived)

    def stage(self) -> list[Entry]:
        """Give ids to everything unsent and return it in the order of ids, to be written to the outbox."""
        staged: list[Entry] = []
        while planned := self._plan_unsent():
            staged.extend(planned)
        return staged

    def withdraw(self, wait: Entry) -> None:
        """Forget a staged wait that could not be written, and so must not be sent."""
        self._table.take(wait)

    def refused_results(self, receipt: wire.Receipt) -> wire.ResultBatch:
        """The refusal of a whole batch as results, for the outbox: the daemon keeps none of these."""
        results = wire.ResultBatch()
        chunk = self._unreceipted.get(receipt.batch_id)
        for operation_id in chunk.operation_ids() if chunk is not None else ():
            results.columns.operation_id.append(operation_id)
            results.columns.refusals.add().CopyFrom(receipt.batch_refusal)
            results.columns.refusals[-1].operation_id = operation_id
        results.columns.outcome.append(Outcome.REFUSED.value)
        return results

    # For the connection

    def open_message(self) -> wire.SessionRequest:
        """The first message of a new connection."""
        self.going_away = None
        opening = wire.OpenSession(
            session_id=self.session_id,
            last_sequence=self._sequence.last,
            columns=True,
            incarnation=self.incarnation,
        )
        return wire.SessionRequest(open=opening)

    def connection_lost(self, now: float) -> None:
        """Note that the connection is gone or could not be made.

        Whether the daemon got the batches in flight is not known here; the highest id of the next opening shows it.
        """
        self.opened = False
        self._lost_at = now
        self._unreceipted.clear()
        self._plan.clear()

    def receive(self, message: wire.SessionResponse, now: float) -> list[Ended]:
        """Handle a message; returns the waits it ended. Raises ProtocolError for one that makes no sense."""
        which = message.WhichOneof("message")
        if which == "results":
            return self._on_results(message.results, now)
        if which == "receipt":
            return self._on_receipt(message.receipt, now)
        if which == "opened":
            return self._on_opened(message.opened, now)
        if which == "cancelled":
            self._on_cancelled(message.cancelled)
        elif which == "going_away":
            self.going_away = message.going_away.reason
        return []

    def next_message(self, now: float) -> wire.SessionRequest | None:
        """What to send next; None: nothing for now (see `wake_at`).

        Acknowledgements first, as the daemon refuses registrations while too many results are unacknowledged, and
        cancels before registrations, as they make room.
        """
        if not self.opened:
            return None
        message = self._acknowledgement(now) or self._cancel_message() or self._register_message(now)
        if message is None and now >= self._sent_at + self.heartbeat_interval:
            message = wire.SessionRequest(heartbeat=wire.Heartbeat())
        if message is not None:
            self._sent_at = now
        return message

    def wake_at(self) -> float | None:
        """When `next_message` will have something even if nothing happens (monotonic seconds); None: not opened yet."""
        if not self.opened:
            return None
        heartbeat_at = self._sent_at + self.heartbeat_interval
        due_at = self._sequence.due_at
        return heartbeat_at if due_at is None else min(heartbeat_at, due_at)

    # Messages in

    def _on_opened(self, opened: wire.SessionOpened, now: float) -> list[Ended]:
        highest = opened.highest_operation_id
        is_new = not opened.resumed or self.incarnation not in ("", opened.incarnation)
        if self._known and is_new:
            # The daemon has forgotten the session, and with it all that was to be cancelled.
            self._sequence.restart()
            self._cancelling.clear()
        else:
            self._sequence.opened()
        ended: list[Ended] = []
        if highest and is_new:
            # Somebody else has created the session again: ids up to `highest` are theirs, and so are the results.
            error = OperationIdInUse(
                f"session {self.session_id} was created again and somebody else registers in it: ids up to {highest} "
                "are in use"
            )
            for wait in self._table.entries():
                for operation_id in _pending_ids(wait):
                    if operation_id <= highest:
                        self._table.refuse(operation_id, error, ended)
        self.incarnation = opened.incarnation
        self._known = self.opened = True
        self._opened_at = self._receipt_at = now
        self._receipted_id = highest
        if opened.timeout_ms_default > 0:
            self._timeout_default = opened.timeout_ms_default / 1_000
        self._sent_at = now
        self.heartbeat_interval = max(0.01, opened.heartbeat_interval_ms / 1_000)
        if opened.operations_per_batch_max > 0:
            self._chunk_max = min(OPERATIONS_PER_CHUNK_MAX, opened.operations_per_batch_max)
        self._message_bytes_max = opened.message_bytes_max or MESSAGE_BYTES_MAX
        self._batch_bytes_max = min(self._batch_bytes_max, self._message_bytes_max)
        if opened.unacknowledged_results_max > 0:
            self._sequence.limit(opened.unacknowledged_results_max)
        # Everything up to `highest` has arrived, receipted or not. What is above is planned again in the order of ids:
        # the daemon would take a batch with lower ids after one with higher ids for known, and drop it.
        self._table.start_after(highest)
        self._plan = deque(self._table.chunks_above(highest, self._chunk_max))
        self._cancelling = {operation_id: None for operation_id in self._cancelling if operation_id <= highest}
        self._cancels = list(self._cancelling)
        return ended

    def _on_receipt(self, receipt: wire.Receipt, now: float) -> list[Ended]:
        chunk = self._unreceipted.pop(receipt.batch_id, None)
        self._receipt_at = now
        if chunk is not None:
            self._receipted_id = max(self._receipted_id, chunk.last_id)
        ended: list[Ended] = []
        if receipt.HasField("batch_refusal") and chunk is not None:
            error = refusal_error(receipt.batch_refusal)
            for operation_id in chunk.operation_ids():
                self._table.refuse(operation_id, error, ended)
        for refusal in receipt.refusals:
            self._table.refuse(refusal.operation_id, refusal_error(refusal), ended)
        if receipt.already_known and chunk is not None:
            # An id is sent once in a connection, and only if the daemon did not know it when that was opened. So a
            # stranger has used the lowest ids of the batch, and no result of these operations would ever come.
            error = OperationIdInUse(f"somebody else registers in session {self.session_id}: the id was known already")
            for operation_id in islice(chunk.operation_ids(), receipt.already_known):
                self._table.refuse(operation_id, error, ended)
            self._table.start_after(receipt.highest_operation_id)
        return ended

    def _on_results(self, message: wire.ResultBatch, now: float) -> list[Ended]:
        arrived = _arrived(message)
        skip = self._sequence.arrive(message.first_sequence, sum(len(one.operation_ids) for one in arrived), now)
        ended: list[Ended] = []
        for one in arrived:
            count = len(one.operation_ids)
            if skip < count:
                self._table.end(one, skip, ended)
            skip = max(0, skip - count)
        return ended

    def _on_cancelled(self, receipt: wire.CancelReceipt) -> None:
        for operation_ids in (receipt.cancelled_operation_ids, receipt.not_pending_operation_ids):
            for operation_id in operation_ids:
                self._cancelling.pop(operation_id, None)

    # Messages out

    def _acknowledgement(self, now: float) -> wire.SessionRequest | None:
        sequence = self._sequence.acknowledge(now, at_once=self._ending)
        if sequence is None:
            return None
        return wire.SessionRequest(acknowledge=wire.AcknowledgeResults(sequence=sequence))

    def _cancel_message(self) -> wire.SessionRequest | None:
        if not self._cancels:
            return None
        operation_ids = self._cancels[:CANCELS_PER_MESSAGE_MAX]
        del self._cancels[: len(operation_ids)]
        return wire.SessionRequest(cancel=wire.CancelOperations(operation_ids=operation_ids))

    def _register_message(self, now: float) -> wire.SessionRequest | None:
        while len(self._unreceipted) < WINDOW and (chunk := self._next_chunk()) is not None:
            message = wire.SessionRequest()
            message.register.batch_id = self._next_batch_id
            if chunk.batch is None:
                fill_with_waits(message.register.columns, chunk.waits, self._lost_at, now)
            else:
                fill_with_many(message.register.columns, chunk.batch, chunk.positions, self._lost_at, now)
            chunk.size_bytes = message.ByteSize()
            if chunk.size_bytes > self._batch_bytes_max and (halves := chunk.halves()) is not None:
                self._plan.extendleft(reversed(halves))
                continue
            if chunk.size_bytes > self._message_bytes_max:
                self._refuse_too_large(chunk, f"the daemon accepts {self._message_bytes_max}")
                continue
            self._unreceipted[self._next_batch_id] = chunk
            self._next_batch_id += 1
            return message
        return None

    def _next_chunk(self) -> WaitChunk | None:
        """The next batch; None: there is none, or it is not in the outbox file yet, and nothing may overtake it."""
        while self._plan or (not self._has_outbox and self._plan_unsent()):
            chunk = self._still_pending(self._plan.popleft())
            if chunk is None:
                continue
            if chunk.last_id <= self.written_id:
                return chunk
            self._plan.appendleft(chunk)
            break
        return None

    def _plan_unsent(self) -> list[Entry]:
        """Give ids to unsent waits that can share a batch, and plan it. Returns them; empty: nothing is unsent."""
        while self._unsent:
            key = next(iter(self._unsent))
            queue = self._unsent.pop(key)
            planned: list[Entry] = list(islice(queue, self._chunk_max))
            for entry in planned:
                del queue[entry]
                self._table.add(entry)
                self._unsent_count -= entry.count
            if queue:
                self._unsent[key] = queue
            if planned:
                self._plan.extend(cut_into_chunks(planned, self._chunk_max))
                return planned
        return []

    def _still_pending(self, chunk: WaitChunk) -> WaitChunk | None:
        """The chunk without what has ended since it was planned; None: all of it has."""
        if chunk.batch is None:
            waits = [wait for wait in chunk.waits if wait in self._table]
            return WaitChunk(waits) if waits else None
        if chunk.batch not in self._table:
            return None
        if chunk.batch.remaining == chunk.batch.count:
            return chunk
        outcomes = chunk.batch.outcomes
        positions = [position for position in chunk.positions if outcomes[position] == Outcome.PENDING]
        return WaitChunk([], chunk.batch, positions) if positions else None


def _pending_ids(wait: Entry) -> Sequence[int]:
    """Ids of the operations of a wait or batch that have not ended."""
    return wait.ids_of(wait.pending_positions()) if isinstance(wait, WaitBatch) else [wait.operation_id]


def _arrived(batch: wire.ResultBatch) -> list[ResultsArrived]:
    if batch.WhichOneof("shape") == "rows":
        return [arrived_row(row) for row in batch.rows.results]
    return [ResultsArrived(batch.columns)]
