"""One session with the daemon, without I/O: takes waits and wire messages, returns wire messages and ended waits.

Time is an argument (monotonic seconds). The rules of a session:

- An operation gets its id when it is first put into a batch. Ids increase; an operation keeps its id on reconnect.
- Waits submitted while batches are in flight are sent together, one batch per kind. At most `WINDOW` batches may be
  without a receipt, so batches grow under load, and in an idle session nothing is delayed.
- After a reconnect the daemon reports the highest id it knows, and everything above is sent again. A wait submitted
  before the connection was lost, or before a failed attempt to connect, is sent with its remaining time.
- If the daemon no longer knows the session (it restarted, or the session's time to live passed), everything pending is
  registered again under the same ids with its remaining time. A wait without its own timeout gets the daemon's default
  again. The sequence number of the last result is sent together with the incarnation it belongs to, so that it
  acknowledges nothing in another incarnation.
- Each wait ends once: repeated results are recognised by their sequence number, results without a wait by their id.
- A wait whose id another client has used in this session fails at once, because it would never get a result.
- A wait that a connected daemon has not answered long after its timeout fails too (`fail_overdue`).
- A cancelled wait is forgotten here at once; the cancel is repeated until the daemon answers it.
- No batch is larger than the daemon's `message_bytes_max`. If a batch still ends the stream, because a proxy accepts
  less, it is halved; a single operation that is too large fails.
- With an outbox (`restore`), waits get their ids when they are staged for its file (`stage`), and only what has been
  written is sent.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.batches import Entry
from purgatory_client.errors import LimitExceeded, NoAnswer, OperationIdInUse
from purgatory_client.session import pending_waits
from purgatory_client.session.sequence import ResultSequence
from purgatory_client.wire import sizes
from purgatory_client.wire.decode_results import arrived_batch, refusal_error, refused_batch
from purgatory_client.wire.encode_waits import fill_with_many, fill_with_waits


class SessionCore:
    def __init__(self, session_id: str, pending_max: int) -> None:
        self.session_id: Final = session_id
        self.pending_max: Final = pending_max
        self.opened = False
        """Whether the daemon has opened the session on the current connection."""
        self.incarnation = ""
        """The session's incarnation when it was last opened; empty if unknown."""
        self.going_away: int | None = None
        """Why the daemon is about to end the connection; None: it is not."""
        self.heartbeat_interval = 1.0
        # A wait is in exactly one of `_unsent` and `_table`. Chunks refer to the table, and may hold ended waits.
        self._table = pending_waits.PendingWaits()
        self._unsent: dict[object, dict[Entry, None]] = {}
        """Unsent waits by `batch_key`: those with the same key can share a batch."""
        self._unsent_count = 0
        self._plan: deque[pending_waits.WaitChunk] = deque()
        self._unreceipted: dict[int, pending_waits.WaitChunk] = {}
        self._next_batch_id = 1
        self._chunk_max = sizes.OPERATIONS_PER_CHUNK_MAX
        self._message_bytes_max = sizes.SENT_BYTES_MAX
        self._batch_bytes_max = sizes.SENT_BYTES_MAX
        """Larger batches are split. Below `_message_bytes_max` after a batch was refused for its size."""
        self._too_large: list[pending_waits.Ended] = []
        self._cancels: list[int] = []
        self._cancelling: dict[int, None] = {}
        self._sequence = ResultSequence()
        self._known = False
        self._lost_at = -1.0
        self._sent_at = 0.0
        self._overdue = pending_waits.OverdueWaits(self.waiting)
        self._timeout_default: float | None = None
        self._opened_at = 0.0
        self._receipt_at = 0.0
        self._receipted_id = 0
        """The daemon has received every operation up to this id."""
        self._ending = False
        self.written_id = math.inf
        """With an outbox: the highest id written to its file. Operations above it must not be sent."""

    @property
    def pending(self) -> int:
        """The number of pending operations and unanswered cancels."""
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
        self._unsent.setdefault(pending_waits.batch_key(wait), {})[wait] = None

    def cancel(self, wait: Entry) -> None:
        """Forget a wait whose caller was cancelled, and cancel it at the daemon if it was sent.

        A wait that is not pending is ignored: it may have ended, or been drained, at the same time.
        """
        if self._table.take(wait):
            operation_ids = pending_waits.pending_ids(wait)
            self._cancelling |= dict.fromkeys(operation_ids)
            self._cancels.extend(operation_ids)
        else:
            self._forget_unsent(wait)

    def end(self) -> None:
        """Send outstanding cancels and the acknowledgement without delay, because the session is being closed."""
        self._ending = True

    @property
    def ended(self) -> bool:
        """Whether the session is being closed and nothing is left to send or receive."""
        return self._ending and not self.pending and self._sequence.due_at is None

    @property
    def is_used_up(self) -> bool:
        """Whether all ids are used, because another client registered the highest possible one."""
        return self._table.is_used_up

    def waiting(self) -> list[Entry]:
        """All waits that have not ended."""
        return [*self._table.entries(), *chain.from_iterable(self._unsent.values())]

    def fail_overdue(self, heard_at: float) -> list[pending_waits.Ended]:
        """End waits that the daemon should have answered long ago, and return them.

        Call it every `pending_waits.TURN` seconds. `heard_at` is the time of the daemon's last message.
        """
        ended: list[pending_waits.Ended] = []
        for wait in self._overdue.visit(self._due_at, heard_at) if self.opened else ():
            error = NoAnswer(
                "the daemon did not answer long after the timeout of this wait; whether it was registered is not known"
            )
            if wait in self._table:
                self._table.refuse(pending_waits.pending_ids(wait), error, ended)
            elif self._forget_unsent(wait):
                ended.append((wait, error))
        return ended

    def _forget_unsent(self, wait: Entry) -> bool:
        queue = self._unsent.get(pending_waits.batch_key(wait), {})
        if wait not in queue:
            return False
        del queue[wait]
        self._unsent_count -= wait.count
        return True

    def extended(self, operation_ids: Iterable[int], timeout_ms: int, now: float) -> None:
        """The daemon lets operations wait for at least `timeout_ms` from `now` on: they are overdue later."""
        default_ms = round((self._timeout_default or 0) * 1_000)
        self._table.extend(operation_ids, timeout_ms, default_ms, now)

    def _due_at(self, wait: Entry) -> float:
        """The time at which the answer is overdue.

        An operation without a receipt may be waiting behind others in the window, so its grace starts at the last
        receipt of any batch.
        """
        # A batch is overdue by its longest timeout: only then can none of its operations still be on time.
        after = pending_waits.due_after(wait, self._timeout_default)
        if after is None:
            return math.inf
        is_receipted = wait.operation_id > 0 and wait.operation_id + wait.count - 1 <= self._receipted_id
        reached_at = self._opened_at if is_receipted else self._receipt_at
        return max(wait.submitted_at + after, reached_at + pending_waits.GRACE)

    def take_too_large(self) -> list[pending_waits.Ended]:
        """The waits that could not be sent since the last call, because each is larger than a message."""
        ended, self._too_large = self._too_large, []
        return ended

    def message_refused(self) -> bool:
        """Record that the daemon or a proxy ended the stream because of a message's size.

        Call this before `connection_lost`, which forgets the batches in flight.

        The largest batch without a receipt is taken to be the cause, and batches are smaller from now on. If it held a
        single operation, that operation fails. Returns False if no batch was in flight.
        """
        if not self._unreceipted:
            return False
        # gRPC does not report which message was refused. A wrong guess costs another reconnect, but no wait.
        chunk = max(self._unreceipted.values(), key=lambda chunk: chunk.size_bytes)
        self._batch_bytes_max = chunk.size_bytes * 2 // 3  # leaves room for either half of it
        if chunk.halves() is None:
            self._refuse_too_large(chunk, "a message of this size was refused")
        return True

    def _refuse_too_large(self, chunk: pending_waits.WaitChunk, reason: str) -> None:
        error = LimitExceeded(f"the operation needs a message of {chunk.size_bytes} bytes; {reason}: split it")
        self._table.refuse([chunk.last_id], error, self._too_large)

    def drain(self) -> list[Entry]:
        """Forget all waits and return them. Sends nothing to the daemon."""
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
        """Resume the waits of an outbox file, in the order of ids.

        The file does not contain the sequence number of the last result, so numbering starts with the daemon's next
        batch. Setting `_lost_at` makes restored waits go out with their remaining time (by the wall clock).
        """
        for entry in entries:
            # `add` assigns the next id, so each wait gets the id that it has in the file.
            self._table.start_after(entry.operation_id - 1)
            self._table.add(entry)
        self._table.start_after(next_id - 1)
        self.written_id = next_id - 1
        self.incarnation = incarnation
        self._sequence.restart()
        self._lost_at = now

    def replay(self, batch: wire.ResultBatch) -> list[pending_waits.Ended]:
        """End waits with results stored in the outbox."""
        ended: list[pending_waits.Ended] = []
        for arrived in arrived_batch(batch):
            self._table.end(arrived, 0, ended)
        return ended

    def check_names(self, batch: wire.ResultBatch) -> None:
        """Raise OutboxError (COPIED) if a result has other partitions or keys than the wait with its id."""
        for arrived in arrived_batch(batch):
            self._table.check_names(arrived)

    def stage(self) -> list[Entry]:
        """Assign ids to all unsent waits and return them in the order of ids, for the outbox file."""
        staged: list[Entry] = []
        while planned := self._plan_unsent():
            staged.extend(planned)
        return staged

    def withdraw(self, wait: Entry) -> None:
        """Forget a staged wait that could not be written: it must not be sent."""
        self._table.take(wait)

    def refused_results(self, receipt: wire.Receipt) -> wire.ResultBatch:
        """The refusal of a whole batch in the form of results, for the outbox: the daemon does not store refusals."""
        chunk = self._unreceipted.get(receipt.batch_id)
        return refused_batch(chunk.operation_ids() if chunk is not None else (), receipt.batch_refusal)

    # For the connection

    def open_message(self) -> wire.SessionRequest:
        self.going_away = None
        opening = wire.OpenSession(
            session_id=self.session_id, last_sequence=self._sequence.last, columns=True, incarnation=self.incarnation
        )
        return wire.SessionRequest(open=opening)

    def connection_lost(self, now: float) -> None:
        """Record that the connection was lost or could not be made.

        Whether the daemon received the batches in flight is unknown until the next opening reports its highest id.
        """
        self.opened = False
        self._lost_at = now
        # Invariant: planned and sent waits stay in the table until they end. `_on_opened` plans from there again what
        # the daemon does not know.
        self._unreceipted.clear()
        self._plan.clear()

    def receive(self, message: wire.SessionResponse, now: float) -> list[pending_waits.Ended]:
        """Handle a message; returns the waits it ended. Raises ProtocolError for an invalid message."""
        which = message.WhichOneof("message")
        if which == "results":
            return self._on_results(message.results, now)
        if which == "receipt":
            return self._on_receipt(message.receipt, now)
        if which == "opened":
            return self._on_opened(message.opened, now)
        if which == "cancelled":
            self._on_cancelled(message.cancelled)
        elif which == "extended":
            self.extended(message.extended.operation_ids, message.extended.timeout_ms, now)
        elif which == "going_away":
            self.going_away = message.going_away.reason
        return []

    def next_message(self, now: float) -> wire.SessionRequest | None:
        """The next message to send; None if there is none at the moment (see `wake_at`).

        The order matters. Acknowledgements go first, because the daemon refuses registrations while too many results
        are unacknowledged. Cancels go before registrations, because they free capacity.
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
        """When to call `next_message` again if nothing else happens (monotonic seconds); None: not opened yet."""
        if not self.opened:
            return None
        heartbeat_at = self._sent_at + self.heartbeat_interval
        due_at = self._sequence.due_at
        return heartbeat_at if due_at is None else min(heartbeat_at, due_at)

    def is_quiet(self, until: float) -> bool:
        """Whether `next_message` would return nothing before `until` if nothing else happens."""
        has_message = self._ending or self._sequence.is_due or self._cancels or self._plan or self._unsent
        return not has_message and (self.wake_at() or 0.0) >= until

    # Messages in

    def _on_opened(self, opened: wire.SessionOpened, now: float) -> list[pending_waits.Ended]:
        highest = opened.highest_operation_id
        is_new = not opened.resumed or self.incarnation not in ("", opened.incarnation)
        if self._known and is_new:
            # The daemon has forgotten the session, so there is nothing left to cancel.
            self._sequence.restart()
            self._cancelling.clear()
        else:
            self._sequence.opened()
        ended: list[pending_waits.Ended] = []
        if highest and is_new:
            # Another client has created the session again: the ids up to `highest`, and their results, belong to it.
            error = OperationIdInUse(
                f"session {self.session_id} was created again by another client, which has used the ids up to {highest}"
            )
            for wait in self._table.entries():
                self._table.refuse([one for one in pending_waits.pending_ids(wait) if one <= highest], error, ended)
        self.incarnation = opened.incarnation
        self._known = self.opened = True
        self._opened_at = self._receipt_at = now
        self._receipted_id = highest
        if opened.timeout_ms_default > 0:
            self._timeout_default = opened.timeout_ms_default / 1_000
        self._sent_at = now
        self.heartbeat_interval = max(0.01, opened.heartbeat_interval_ms / 1_000)
        if opened.operations_per_batch_max > 0:
            self._chunk_max = min(sizes.OPERATIONS_PER_CHUNK_MAX, opened.operations_per_batch_max)
        self._message_bytes_max = opened.message_bytes_max or sizes.SENT_BYTES_MAX
        self._batch_bytes_max = min(self._batch_bytes_max, self._message_bytes_max)
        if opened.unacknowledged_results_max > 0:
            self._sequence.limit(opened.unacknowledged_results_max)
        # The daemon has everything up to `highest`, with or without a receipt. The rest is sent again, and must be sent
        # in the order of ids: the daemon would treat a batch with lower ids as already known, and drop it.
        self._table.start_after(highest)
        self._plan = deque(self._table.chunks_above(highest, self._chunk_max))
        # Operations above `highest` never reached the daemon and are not sent again.
        self._cancelling = {operation_id: None for operation_id in self._cancelling if operation_id <= highest}
        self._cancels = list(self._cancelling)
        return ended

    def _on_receipt(self, receipt: wire.Receipt, now: float) -> list[pending_waits.Ended]:
        chunk = self._unreceipted.pop(receipt.batch_id, None)
        self._receipt_at = now
        if chunk is not None:
            self._receipted_id = max(self._receipted_id, chunk.last_id)
        ended: list[pending_waits.Ended] = []
        if receipt.HasField("batch_refusal") and chunk is not None:
            self._table.refuse(chunk.operation_ids(), refusal_error(receipt.batch_refusal), ended)
        for refusal in receipt.refusals:
            self._table.refuse([refusal.operation_id], refusal_error(refusal), ended)
        if receipt.already_known and chunk is not None:
            # Each id is sent once per connection, if the daemon did not know it at the start. So another client has
            # used the lowest ids of this batch, and these operations would never get a result.
            error = OperationIdInUse(f"another client has used this operation id in session {self.session_id}")
            self._table.refuse(islice(chunk.operation_ids(), receipt.already_known), error, ended)
            self._table.start_after(receipt.highest_operation_id)
        return ended

    def _on_results(self, message: wire.ResultBatch, now: float) -> list[pending_waits.Ended]:
        # Repeats after a reconnect are skipped by number. Results of cancelled waits are not repeats; the table ignores
        # them, because their ids are no longer in it.
        arrived = arrived_batch(message)
        skip = self._sequence.arrive(message.first_sequence, sum(len(one.operation_ids) for one in arrived), now)
        ended: list[pending_waits.Ended] = []
        for one in arrived:
            self._table.end(one, skip, ended)
            skip = max(0, skip - len(one.operation_ids))
        return ended

    def _on_cancelled(self, receipt: wire.CancelReceipt) -> None:
        # Either list answers the cancel. A cancelled operation has no result: its wait was forgotten in `cancel`.
        for operation_id in chain(receipt.cancelled_operation_ids, receipt.not_pending_operation_ids):
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
        operation_ids = self._cancels[: sizes.CANCELS_PER_MESSAGE_MAX]
        del self._cancels[: len(operation_ids)]
        return wire.SessionRequest(cancel=wire.CancelOperations(operation_ids=operation_ids))

    def _register_message(self, now: float) -> wire.SessionRequest | None:
        while len(self._unreceipted) < sizes.WINDOW and (chunk := self._next_chunk()) is not None:
            message = wire.SessionRequest()
            message.register.batch_id = self._next_batch_id
            if chunk.batch is None:
                fill_with_waits(message.register.columns, chunk.waits, self._lost_at, now)
            else:
                fill_with_many(message.register.columns, chunk.batch, chunk.positions, self._lost_at, now)
            chunk.size_bytes = message.ByteSize()
            # Only batches at the limit are encoded twice; an estimate of the size would make all batches smaller.
            if chunk.size_bytes > self._batch_bytes_max and (halves := chunk.halves()) is not None:
                # Back to the front and in order: the daemon drops ids below those it knows.
                self._plan.extendleft(reversed(halves))
                continue
            if chunk.size_bytes > self._message_bytes_max:
                # A single operation: it could never be sent, and everything behind it would wait for ever.
                self._refuse_too_large(chunk, f"the daemon accepts {self._message_bytes_max}")
                continue
            self._unreceipted[self._next_batch_id] = chunk
            self._next_batch_id += 1
            return message
        return None

    def _next_chunk(self) -> pending_waits.WaitChunk | None:
        """The next batch. None: there is none, or it is not in the outbox file yet, and nothing may overtake it."""
        # With an outbox, waits are planned when they are staged.
        while self._plan or (self.written_id == math.inf and self._plan_unsent()):
            # Between planning and sending, waits may have been cancelled, answered by a replayed result or drained.
            chunk = self._table.still_pending(self._plan.popleft())
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
            # At the end again, so that no kind of waits starves the others.
            if queue:
                self._unsent[key] = queue
            if planned:
                self._plan.extend(pending_waits.cut_into_chunks(planned, self._chunk_max))
                return planned
        return []
