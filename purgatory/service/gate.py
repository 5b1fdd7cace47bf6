"""The limits that a registration must pass before the engine: memory, shares, the journal, and room for results.

A refusal states after what time to try again. If room depends on operations ending, that is the time until the next one
expires. Events may make room earlier, at any time, so it is at most `RETRY_AFTER_MS_MAX`.
"""

from typing import Final

from purgatory.clock import EngineTime
from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.engine import Engine
from purgatory.service.access.account import Account
from purgatory.service.budget.shares import Shares
from purgatory.service.errors import RETRY_AFTER_MS, BatchRejected, from_refusal, unavailable
from purgatory.service.listeners.listener import Journal, Listener
from purgatory.service.sessions.refused import FULL
from purgatory.service.sessions.session import Session
from purgatory.service.settings import LimitsSettings
from purgatory.service.translate import batch_limits
from purgatory.service.translate.operations import OperationRun

SHUTTING_DOWN_MESSAGE: Final = "the daemon is shutting down; try another one, or later"
RETRY_AFTER_MS_MAX: Final = 60_000


class Gate:
    """Checks limits, listeners and the journal. The index of a refusal is not set."""

    def __init__(
        self, limits: LimitsSettings, listeners: Listener, shares: Shares, engine: Engine, time: EngineTime
    ) -> None:
        self._limits: Final = limits
        self._listeners: Final = listeners
        self.shares: Final = shares
        self._engine: Final = engine
        self._time: Final = time
        self.journal = Journal()
        self.draining = False
        """Shutdown has begun: no new work is accepted."""

    # Batches of a session.

    def check_batch(self, session: Session, operations: int, items: int) -> None:
        """Call before anything of the batch is copied, and again after waiting for other batches of the session.

        Raises:
            BatchRejected: The memory budget or the account's share of it is used up, the journal cannot be written, or
                the session has no room for results of refused registrations or for more ids of refused batches.
        """
        self.check_memory(session.account, operations, items)
        if session.refused_ids.is_full:
            raise BatchRejected(FULL)
        self.check_journal_writable()
        # Refusals are results too, so a caller that never reads them must be stopped here.
        limit = self._limits.unacknowledged_results_max + batch_limits.OPERATIONS_MAX
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            message = f"the session has {unacknowledged} unacknowledged results: read and acknowledge, then send again"
            refusal = Refusal(0, codes.RESOURCE_EXHAUSTED, "unacknowledged_results", message)
            self._count(refusal)
            raise BatchRejected(refusal, retry_after_ms=None)

    def check_memory(self, account: Account, operations: int, items: int) -> None:
        """Raise `BatchRejected` if a batch does not fit into the memory budget, or the account's share of it."""
        refusal = self.memory_refusal(account, operations, items)
        if refusal is not None:
            self._count_memory(refusal)
            raise BatchRejected(refusal)

    def reason_to_refuse(self, session: Session) -> Refusal | None:
        """Return why registrations in this session are refused at the moment; None: they are accepted."""
        if self.draining:
            return Refusal(0, codes.UNAVAILABLE, "", SHUTTING_DOWN_MESSAGE)
        reason = self._listeners.reason_to_refuse()
        if reason is not None:
            return reason
        limit = self._limits.unacknowledged_results_max
        unacknowledged = session.outbox.unacknowledged
        # A lower limit than in `check_batch`: in between, operations are refused one by one, and the room is for the
        # results of those refusals, up to one batch.
        if unacknowledged >= limit:
            return Refusal(
                0,
                codes.RESOURCE_EXHAUSTED,
                "",
                f"the session has {unacknowledged} unacknowledged results, the limit is {limit}: read and acknowledge",
            )
        return None

    # Events and unary waits.

    def check_events(self) -> None:
        """Raise `BatchRejected` if no events are accepted at the moment. Call once per batch, before its first part."""
        reason = self._listeners.reason_to_refuse()
        if reason is not None:
            raise BatchRejected(reason)
        self.check_journal_writable()

    def check_journal_writable(self) -> None:
        """Raise `BatchRejected` while the journal cannot be written, before any change that could not be stored."""
        failing = self.journal.why_closed()
        if failing is not None:
            raise BatchRejected(failing)

    def check_unary_items(self, account: Account, items: int) -> None:
        """Raise `RpcError` if the operation of a call of Wait does not fit into the memory budget."""
        self._check_call(self.memory_refusal(account, 1, items))

    def memory_refusal(self, account: Account, operations: int, items: int) -> Refusal | None:
        """Return why operations with a total of `items` do not fit; None: they fit."""
        return self.shares.memory_refusal(account, self.shares.budget.operations_bytes(operations, items))

    def check_answer(self, account: Account) -> None:
        """Raise `RpcError` if memory, or the account's share of it, is too short for an answer that may be large."""
        self._check_call(self.shares.answer_refusal(account))

    def next_expiry_ms(self) -> int:
        """Return the time until the next pending operation expires, rounded up to the precision of the timing wheel."""
        expires_ms = self._engine.next_expiration_ms()
        if expires_ms < 0:
            return RETRY_AFTER_MS
        # At least 1: an expiry that is due but not served yet would advise an immediate retry.
        return min(max(1, expires_ms - self._time.now_ms()), RETRY_AFTER_MS_MAX)

    def retry_after_ms(self, account: Account, run: OperationRun) -> int | None:
        """Return when to repeat an operation that the engine had no room for.

        None: only room for partitions is missing, and that needs a partition to be removed.
        """
        engine, held, items = self._engine, account.usage, len(run.batch.item_indexes)
        limits = engine.limits
        # Operations, items and keys become free when operations end. A partition that an event has named stays known,
        # so no time can be given for it.
        needs_end = (
            run.kind in (codes.SIGNAL, codes.COMPOSITE)
            or engine.pending >= limits.pending_operations_max
            or engine.pending_items + items > limits.pending_items_max
            or held.operations >= held.operations_max
            or held.items + items > held.items_max
        )
        return self.next_expiry_ms() if needs_end else None

    def _check_call(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._count_memory(refusal)
            raise from_refusal(refusal, "")

    def _count_memory(self, refusal: Refusal) -> None:
        self._count(refusal)
        self.shares.budget.refusals += 1

    def _count(self, refusal: Refusal) -> None:
        self._listeners.refused([refusal])

    def check_unary_wait(self, account: Account, in_flight: int) -> None:
        """Raise `RpcError` if no further call of Wait is accepted. `in_flight`: calls of Wait now."""
        if self.draining:
            raise unavailable(SHUTTING_DOWN_MESSAGE)
        reason = self._listeners.reason_to_refuse()
        if reason is not None:
            raise unavailable(reason.message)
        failing = self.journal.why_closed()
        if failing is not None:
            raise from_refusal(failing, "journal")
        refusal = self.shares.unary_wait_refusal(account, in_flight)
        if refusal is not None:
            self._count(refusal)
            raise from_refusal(refusal, "", self.next_expiry_ms())
