"""The owner of the engine, its sessions and its unary waits, on the event loop. Every change of state goes through it.

All methods that change the engine are plain calls: nothing else runs between two awaits, so there is no lock. Long work
(a batch of events that ends many operations, a herd of expiries, shutdown) goes in slices with the loop free between
them. After every engine call its completions are taken and routed to their owners.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from purgatory.clock import Clock
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, EventsReceipt, PartitionName, Refusal, RegisterReceipt
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.waiting.tables import Owner
from purgatory.service.engine_time import EngineTime
from purgatory.service.listeners.listener import Journal, Listener
from purgatory.service.reaper import EXPIRED_PER_SLICE, Reaper
from purgatory.service.rpc.statuses import BatchRefused, from_refusal, resource_exhausted, unavailable, unreadable_batch
from purgatory.service.sessions.outbox import ResultSlice, slices_of
from purgatory.service.sessions.refused import (
    RefusedCompletions,
    RefusedOperation,
    engine_receipt,
    first_of_each_id,
    located,
    refuse_all,
)
from purgatory.service.sessions.session import Session
from purgatory.service.sessions.session_table import Sessions
from purgatory.service.sessions.unary_waits import UnaryWaits
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.receipts import BatchReceipt

LOGGER: Final = logging.getLogger(__name__)

ENDED_PER_SLICE: Final = 2_000
"""The most events plus ended operations that one engine call handles before the loop is free again."""

SHUTTING_DOWN_MESSAGE: Final = "the daemon is shutting down; try another one, or later"


class Host:
    """Owns the engine. `start` it on the loop that will call it; at the end `draining.drain` it, then `stop` it."""

    def __init__(self, engine: Engine, clock: Clock, settings: HostSettings, *listeners: Listener) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        """For sessions and streams."""
        self.time: Final = EngineTime(clock)
        """For the engine."""
        self.settings: Final = settings
        self.listeners: Final = list(listeners)
        """Everything that is notified of this host's work. Add to it before anything happens."""
        self.journal = Journal()
        """Set by `use_journal`; without that, one that keeps nothing."""
        self.sessions: Final = Sessions(engine, settings, self.listeners, self._before_drop)
        self.unary_waits: Final = UnaryWaits(engine.add_owner())
        self.draining = False
        """Set by `draining.drain`: nothing new is taken any more."""
        self.started_time: Final = time.time()
        """Wall clock, seconds: for display, never for measuring."""
        self.reaper: Final = Reaper(engine, clock, self.listeners, self._expire_slice)
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def use_journal(self, journal: Journal) -> None:
        """From now on everything is journaled. To be called before anything happens."""
        self.journal = journal
        self.listeners.append(journal)

    def start(self) -> None:
        """Starts the background tasks, expiry and session maintenance, on the running loop."""
        assert not self._tasks, "the host is already running"
        self._tasks.append(asyncio.create_task(self.reaper.run(), name="reaper"))
        self._tasks.append(asyncio.create_task(self._maintain_sessions(), name="session maintenance"))

    async def stop(self) -> None:
        """Stops the background tasks. What is pending stays pending: drain first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    # Registrations.

    def register(
        self, session: Session, runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]
    ) -> BatchReceipt:
        """Registers a batch in a session; each operation is accepted, already known, or refused.

        `refused` are those refused during translation, each with its operation id. Raises `BatchRefused` when the
        columns cannot be read, the journal cannot be written, or the session has no room even for the results of
        refused registrations.
        """
        self._check_journal_writable()
        self._check_room_for_refusals(session)
        # Taken before anything is registered: what this batch itself makes known is not "sent again".
        known = session.owner.highest_operation_id
        receipt = BatchReceipt()
        failures = [RefusedOperation(refusal, operation_id, 0) for refusal, operation_id in refused]
        reason = self._reason_to_refuse(session)
        for run in runs:
            if reason is not None:
                failures.extend(refuse_all(run, reason))
                self._tell_refused_run(session, run, reason, known)
            else:
                failures.extend(self._register_run(session, run, receipt))
        # An id up to `known` was registered before this batch, so a repeated refusal has had its result already.
        repeated = [entry for entry in failures if 0 < entry.operation_id <= known]
        receipt.already_known += len(repeated)
        if len(failures) > len(repeated):
            new = [entry for entry in failures if not 0 < entry.operation_id <= known]
            new.sort(key=lambda entry: entry.refusal.index)
            receipt.refused = [(refusal, operation_id) for refusal, operation_id, _ in new]
            self._count_refused([refusal for refusal, _ in receipt.refused])
            self._deliver_refused(session, first_of_each_id(new, runs))
        receipt.highest_operation_id = session.owner.highest_operation_id
        return receipt

    def _reason_to_refuse(self, session: Session) -> Refusal | None:
        """Why nothing can be registered in this session now; None: it can. The refusal's index means nothing."""
        if self.draining:
            return Refusal(0, codes.UNAVAILABLE, "", SHUTTING_DOWN_MESSAGE)
        reason = self._listeners_reason()
        if reason is not None:
            return reason
        limit = self.settings.limits.unacknowledged_results_max
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            return Refusal(
                0,
                codes.RESOURCE_EXHAUSTED,
                "",
                f"the session has {unacknowledged} unacknowledged results, the limit is {limit}: read and acknowledge",
            )
        return None

    def _listeners_reason(self) -> Refusal | None:
        """The first reason that any listener has."""
        return next((reason for listener in self.listeners if (reason := listener.reason_to_refuse())), None)

    def _check_journal_writable(self) -> None:
        """Refuses the whole batch while the journal cannot be written: nothing is begun that could not be kept."""
        failing = self.journal.why_closed()
        if failing is not None:
            raise BatchRefused(failing)

    def _check_room_for_refusals(self, session: Session) -> None:
        """Refused registrations are results too, so a caller that reads none of them must be stopped here."""
        limit = self.settings.limits.unacknowledged_results_max + self.settings.limits.operations_per_batch_max
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            message = f"the session has {unacknowledged} unacknowledged results: read and acknowledge, then send again"
            raise BatchRefused(Refusal(0, codes.RESOURCE_EXHAUSTED, "", message))

    def _register_run(self, session: Session, run: OperationRun, receipt: BatchReceipt) -> list[RefusedOperation]:
        try:
            answer = self._register(session.owner, session, run)
        except InvalidBatch as error:
            raise unreadable_batch(f"columns.{error.field}", error.message) from None
        receipt.accepted += answer.accepted
        receipt.already_known += answer.already_known
        ids = run.batch.operation_ids
        return [RefusedOperation(located(run, refusal), ids[refusal.index], run.kind) for refusal in answer.refusals]

    def _register(self, owner: Owner, session: Session | None, run: OperationRun) -> RegisterReceipt:
        now_ms = self._registration_ms()
        receipt = self.engine.register(owner, run.kind, run.batch, now_ms)
        for listener in self.listeners:
            listener.registered(session, run.kind, run.batch, receipt, now_ms)
        self.deliver()
        self.reaper.deadline_may_be_earlier()
        return receipt

    def _deliver_refused(self, session: Session, refused: list[RefusedOperation]) -> None:
        """Refused registrations get results like all others, and from then on their ids count as known."""
        if not refused:
            return
        for listener in self.listeners:
            # First: the journal works out their sequence numbers from the outbox as it is.
            listener.refused_in_session(session, refused)
        session.outbox.append(slices_of(RefusedCompletions(refused), [entry.refusal for entry in refused]))
        session.wake()
        known = [entry.operation_id for entry in refused if entry.operation_id <= OPERATION_ID_MAX]
        session.owner.highest_operation_id = max(session.owner.highest_operation_id, *known, 0)

    def _tell_refused_run(self, session: Session, run: OperationRun, reason: Refusal, known: int) -> None:
        """The engine never saw this run: history has it as refused, except for ids that were known before."""
        receipt, now_ms = engine_receipt(run, reason, known), self.time.now_ms()
        for listener in self.listeners:
            listener.refused_unseen(session, run.kind, run.batch, receipt, now_ms)

    def _count_refused(self, refusals: Sequence[Refusal]) -> None:
        if refusals:
            for listener in self.listeners:
                listener.refused(refusals)

    def acknowledge(self, session: Session, sequence: int) -> None:
        """Drops a session's results up to `sequence`. Raises `CallRefused` for a number that was never given out."""
        session.acknowledge(sequence)
        for listener in self.listeners:
            listener.acknowledged(session)

    # Unary waits.

    @contextmanager
    def unary_wait(self) -> Iterator[tuple[int, asyncio.Future[ResultSlice]]]:
        """A unary wait's operation id and the future of its result; leaving the block cancels what is still pending.

        Raises `CallRefused` when nothing may be registered now.
        """
        if self.draining:
            raise unavailable(SHUTTING_DOWN_MESSAGE)
        reason = self._listeners_reason()
        if reason is not None:
            raise unavailable(reason.message)
        failing = self.journal.why_closed()
        if failing is not None:
            raise from_refusal(failing, "journal")
        calls_max = self.settings.limits.unary_waits_max
        if len(self.unary_waits) >= calls_max:
            raise resource_exhausted("unary_waits", f"{calls_max} calls of Wait are in flight, the most allowed")
        operation_id, future = self.unary_waits.add()
        try:
            yield operation_id, future
        finally:
            if self.unary_waits.remove(operation_id):
                self._cancel_unary_wait(operation_id)

    def register_unary_wait(self, run: OperationRun) -> None:
        """Registers the one operation of a unary wait. Raises `CallRefused` if the operation is refused."""
        receipt = self._register(self.unary_waits.owner, None, run)
        self._count_refused(receipt.refusals)
        if receipt.refusals:
            raise from_refusal(located(run, receipt.refusals[0]), "operation")

    def _cancel_unary_wait(self, operation_id: int) -> None:
        now_ms = self.time.now_ms()
        if any(self.engine.cancel(self.unary_waits.owner, [operation_id], now_ms)):
            for listener in self.listeners:
                listener.cancelled(None, [operation_id], 1, now_ms)
        self.deliver()

    # Events.

    async def apply(self, batch: EventBatch) -> EventsReceipt:
        """Applies a batch of events, in order, in slices.

        Events of other calls may come between two slices; each caller's own stay in order. A call that is cancelled has
        applied the events up to the end of some slice.

        Raises `BatchRefused` when the columns cannot be read, or no events are taken now.
        """
        reason = self._listeners_reason()
        if reason is not None:
            raise BatchRefused(reason)
        self._check_journal_writable()
        whole = EventsReceipt()
        while True:
            start, now_ms = whole.next_index, self.time.now_ms()
            try:
                part = self.engine.apply(batch, now_ms, start, ENDED_PER_SLICE)
            except InvalidBatch as error:
                raise unreadable_batch(f"columns.{error.field}", error.message) from None
            for listener in self.listeners:
                listener.applied(batch, start, part, now_ms)
            self._count_refused(part.refusals)
            self.deliver()
            self.reaper.deadline_may_be_earlier()
            whole.next_index = part.next_index
            whole.ended.extend(part.ended)
            whole.unchanged += part.unchanged
            whole.refusals.extend(part.refusals)
            if whole.next_index >= len(batch.types):
                return whole
            await asyncio.sleep(0)

    # Cancelling.

    def cancel(self, session: Session, operation_ids: list[int]) -> list[bool]:
        """Cancels operations of a session; for each, whether it was pending."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel(session.owner, operation_ids, now_ms)
        for listener in self.listeners:
            listener.cancelled(session, operation_ids, sum(cancelled), now_ms)
        self.deliver()
        return cancelled

    def cancel_session(self, session: Session) -> int:
        """Cancels all that is pending in a session; returns how many."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel_all(session.owner, now_ms)
        for listener in self.listeners:
            listener.cancelled_session(session, cancelled, now_ms)
        self.deliver()
        return cancelled

    def cancel_partition(self, name: PartitionName) -> int:
        """Cancels all that waits on a partition; returns how many."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel_partition(name, now_ms)
        for listener in self.listeners:
            listener.cancelled_partition(name, cancelled, now_ms)
        self.deliver()
        return cancelled

    def cancel_key(self, key: str) -> int:
        """Cancels all that waits on a key; returns how many."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel_key(key, now_ms)
        for listener in self.listeners:
            listener.cancelled_key(key, cancelled, now_ms)
        self.deliver()
        return cancelled

    # Inside.

    def deliver(self) -> None:
        """Routes completions to their owners: sessions' outboxes, or the futures of unary waits."""
        for completions in self.engine.take_completions():
            if completions.owner_id == self.unary_waits.owner.owner_id:
                for listener in self.listeners:
                    listener.completed(None, completions)
                self.journal.when_durable(partial(self.unary_waits.deliver, completions))
                continue
            session = self.sessions.of_owner(completions.owner_id)
            assert session is not None, f"completions of owner {completions.owner_id}, which is no session"
            # The outbox comes last: the journal must see the sequence numbers as they are before these results.
            for listener in self.listeners:
                listener.completed(session, completions)
            session.deliver(completions)
        for listener in self.listeners:
            listener.call_finished()

    def _registration_ms(self) -> int:
        """The time to register at, which may be ahead of the clock.

        While it is ahead nothing expires, so what is due expires first: otherwise a steady stream of registrations, one
        in every millisecond, would hold all expiries back.
        """
        if 0 <= self.engine.next_expiration_ms() <= self.clock.now_ms():
            self._expire_slice()
        return self.time.registration_ms()

    def _expire_slice(self) -> None:
        if self.time.is_ahead:
            return
        now_ms = self.time.now_ms()
        if self.engine.advance_clock(now_ms, EXPIRED_PER_SLICE):
            for listener in self.listeners:
                listener.expired(now_ms)
        self.deliver()

    def _before_drop(self, session: Session, now_ms: int) -> None:
        """Records how a dropped session's operations end: the engine reports no completions of an owner it removes."""
        for listener in self.listeners:
            listener.session_dropped(session)
        recording = [listener for listener in self.listeners if listener.records_dropped_sessions]
        cancelled = self.engine.cancel_all(session.owner, now_ms) if recording else 0
        if not cancelled:
            return
        taken = self.engine.take_completions()
        for listener in recording:
            listener.cancelled_session(session, cancelled, now_ms)
            for completions in taken:
                assert completions.owner_id == session.owner.owner_id, f"completions of owner {completions.owner_id}"
                listener.discarded(session, completions)
            listener.call_finished()

    async def _maintain_sessions(self) -> None:
        """Sends heartbeats, ends streams whose peer is silent, and drops expired sessions; survives any exception."""
        interval_ms = self.settings.session.heartbeat_interval_ms
        turn_s = min(interval_ms / 4, 1_000) / 1_000
        while True:
            await asyncio.sleep(turn_s)
            try:
                now_ms = self.time.now_ms()
                for stream in self.sessions.streams():
                    stream.check(now_ms, interval_ms)
                self.sessions.drop_expired(now_ms)
                self.deliver()
                for listener in self.listeners:
                    listener.tick()
            except Exception:
                LOGGER.exception("session maintenance failed; it continues")
