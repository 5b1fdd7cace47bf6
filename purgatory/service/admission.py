"""Checks before the engine: whether a batch, its operations, or a unary wait can be accepted at the moment."""

from collections.abc import Sequence
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.service.access.account import Account
from purgatory.service.budget.retry_advice import RetryAdvice
from purgatory.service.budget.shares import Shares
from purgatory.service.errors import BatchRejected, from_refusal, unavailable
from purgatory.service.listeners.listener import Journal, Listener
from purgatory.service.sessions.session import Session
from purgatory.service.settings import LimitsSettings

SHUTTING_DOWN_MESSAGE: Final = "the daemon is shutting down; try another one, or later"


class Admission:
    """Checks limits, listeners and the journal. The index of a refusal is not set."""

    def __init__(
        self, limits: LimitsSettings, listeners: Sequence[Listener], shares: Shares, retry_advice: RetryAdvice
    ) -> None:
        self._limits: Final = limits
        self._listeners: Final = listeners
        self.shares: Final = shares
        self.retry_advice: Final = retry_advice
        self.journal = Journal()
        self.draining = False
        """Shutdown has begun: no new work is accepted."""

    def reason_to_refuse(self, session: Session) -> Refusal | None:
        """Return why registrations in this session are refused at the moment; None: they are accepted."""
        if self.draining:
            return Refusal(0, codes.UNAVAILABLE, "", SHUTTING_DOWN_MESSAGE)
        reason = self.listeners_reason()
        if reason is not None:
            return reason
        limit = self._limits.unacknowledged_results_max
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            return Refusal(
                0,
                codes.RESOURCE_EXHAUSTED,
                "",
                f"the session has {unacknowledged} unacknowledged results, the limit is {limit}: read and acknowledge",
            )
        return None

    def listeners_reason(self) -> Refusal | None:
        """Return the first reason that a listener gives for refusing work."""
        return next((reason for listener in self._listeners if (reason := listener.reason_to_refuse())), None)

    def check_journal_writable(self) -> None:
        """Raise `BatchRejected` while the journal cannot be written, before any change that could not be stored."""
        failing = self.journal.why_closed()
        if failing is not None:
            raise BatchRejected(failing)

    def check_room_for_refusals(self, session: Session) -> None:
        """Raise `BatchRejected` if the session has no room for results of refused registrations.

        Refusals are results too, so a caller that never reads them must be stopped here.
        """
        limit = self._limits.unacknowledged_results_max + self._limits.operations_per_batch_max
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            message = f"the session has {unacknowledged} unacknowledged results: read and acknowledge, then send again"
            refusal = Refusal(0, codes.RESOURCE_EXHAUSTED, "unacknowledged_results", message)
            self._count(refusal)
            raise BatchRejected(refusal, retry_after_ms=None)

    def check_memory(self, account: Account, operations: int, items: int) -> None:
        """Raise `BatchRejected` if a batch does not fit into the memory budget, or the account's share of it.

        Call before anything of the batch is copied.
        """
        refusal = self.memory_refusal(account, operations, items)
        if refusal is not None:
            self._count(refusal)
            self.shares.budget.refusals += 1
            raise BatchRejected(refusal)

    def check_unary_items(self, account: Account, items: int) -> None:
        """Raise `RpcError` if the operation of a call of Wait does not fit into the memory budget."""
        refusal = self.memory_refusal(account, 1, items)
        if refusal is not None:
            self._count(refusal)
            self.shares.budget.refusals += 1
            raise from_refusal(refusal, "")

    def memory_refusal(self, account: Account, operations: int, items: int) -> Refusal | None:
        """Return why operations with a total of `items` do not fit; None: they fit."""
        return self.shares.memory_refusal(account, self.shares.budget.operations_bytes(operations, items))

    def check_answer(self) -> None:
        """Raise `RpcError` if memory is too short for an answer that may be large."""
        refusal = self.shares.budget.refusal()
        if refusal is not None:
            self._count(refusal)
            self.shares.budget.refusals += 1
            raise from_refusal(refusal, "")

    def _count(self, refusal: Refusal) -> None:
        for listener in self._listeners:
            listener.refused([refusal])

    def check_unary_wait(self, account: Account, in_flight: int) -> None:
        """Raise `RpcError` if no further call of Wait is accepted. `in_flight`: calls of Wait now."""
        if self.draining:
            raise unavailable(SHUTTING_DOWN_MESSAGE)
        reason = self.listeners_reason()
        if reason is not None:
            raise unavailable(reason.message)
        failing = self.journal.why_closed()
        if failing is not None:
            raise from_refusal(failing, "journal")
        calls_max = self._limits.unary_waits_max
        refusal = None
        if in_flight >= calls_max:
            message = f"{calls_max} calls of Wait are in flight; allowed: {calls_max}"
            refusal = Refusal(0, codes.RESOURCE_EXHAUSTED, "unary_waits", message)
        refusal = refusal or self.shares.unary_wait_refusal(account, in_flight)
        if refusal is not None:
            self._count(refusal)
            raise from_refusal(refusal, "", self.retry_advice.next_expiry_ms())
        refusal = self.memory_refusal(account, 1, 1)
        if refusal is not None:
            self._count(refusal)
            raise from_refusal(refusal, "")
