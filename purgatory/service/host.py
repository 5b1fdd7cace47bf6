"""Owner of the engine, the sessions and the unary waits. Every change of state goes through it, on the event loop.

Methods that change the engine are synchronous: no other task runs between two awaits, so no lock is needed. Long work
(a batch of events that ends many operations, many expiries at once, shutdown) is split into slices, and the loop is
free between them. After every engine call its completions are taken and routed to their owners.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from purgatory import sizes
from purgatory.clock import Clock, EngineTime, ListeningTime
from purgatory.engine.batches import PartitionName, Refusal
from purgatory.engine.calls import Apply, Cancel, CancelAll, CancelName, Extend, FailStale, PassTime, Pause
from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from purgatory.service.access.account import Account
from purgatory.service.access.authorization_filter import replace_reasons
from purgatory.service.budget.shares import Shares
from purgatory.service.errors import unreadable_batch
from purgatory.service.fair_queue import FairQueue, Turn, next_loop_turn
from purgatory.service.gate import Gate
from purgatory.service.listeners.events import (
    Applied,
    Cancelled,
    CancelledSession,
    CancelledWaits,
    Completed,
    Extended,
    FailedStale,
)
from purgatory.service.listeners.listener import Journal, Listener, Listeners
from purgatory.service.listeners.refusal_log import RefusalLog
from purgatory.service.listeners.result_tail import ResultTail
from purgatory.service.loop_stalls import LoopStalls
from purgatory.service.reaper import Reaper
from purgatory.service.sessions.callbacks import Callbacks
from purgatory.service.sessions.session import Session
from purgatory.service.sessions.session_table import Sessions
from purgatory.service.sessions.unary_waits import OpenWait, UnaryWaits
from purgatory.service.sessions.waiting_callers import WaitingCallers
from purgatory.service.settings import EngineLimitsSettings, HostSettings, Settings
from purgatory.service.sources.source_links import SourceLinks
from purgatory.service.sources.source_table import SourceTable
from purgatory.service.sources.stale_reaper import StaleReaper
from purgatory.service.sources.stale_results import note_stale_marks
from purgatory.service.translate.events import IncomingEvents

LOGGER: Final = logging.getLogger(__name__)

RETRY_AFTER_FAULT_S: Final = 1.0
"""Pause after an error while the operations of dropped sessions are cancelled, seconds."""


class Host:
    """Owns the engine. Call `start` on the loop that will use it, and at the end `draining.drain`, then `stop`."""

    def __init__(self, engine: Engine, clock: Clock, settings: HostSettings, *listeners: Listener) -> None:
        self.engine: Final = engine
        self.time: Final = EngineTime(clock)
        """Engine time. Do not read the clock directly: it may be behind the engine."""
        self.listening: Final = ListeningTime(self.time)
        """The time by which silences and staleness are measured. Reports of sources are stamped with it."""
        self.settings: Final = settings
        self.listeners: Final = Listeners(listeners)
        """Listeners, in notification order. Do not modify after `start`."""
        # The list itself, to which the tail adds itself while it has subscribers. It is changed between calls of the
        # host only.
        self.tail: Final = ResultTail(self.listeners)
        self.listeners.failures.update({"Host": 0, "SourceTable": 0})
        self.journal = Journal()
        """The journal; a no-op journal unless `use_journal` is called."""
        self.callbacks = Callbacks()
        """Refuses callbacks, unless an extension replaces it."""
        self.fleet: Callable[[], str] = str
        """Returns what the daemon does in its fleet, as one line; empty, unless an extension replaces it."""
        self.shares: Final = Shares(settings, engine)
        self.holds: Final = LoopStalls()
        """Stall timers of everything that may take long, by name of the call."""
        self._expiry: Final = self.holds.of("expiry")
        self._session_drop: Final = self.holds.of("session drop")
        self._dropped: Final[deque[Session]] = deque()
        """Closed sessions whose pending operations are still being cancelled."""
        self.sessions: Final = Sessions(engine, settings, self.listeners, self.holds, self._end_dropped, self.shares)
        self.unary_waits: Final = UnaryWaits(engine, self.time.now_ms, self._cancel_unary_waits)
        self.waiting_callers: Final = WaitingCallers()
        self.gate: Final = Gate(settings.limits, self.listeners, self.shares, engine, self.time)
        self.fair_queue: Final = FairQueue(self.listeners.waited_for_turn)
        self.sources: Final = SourceTable()
        """Connector state; `stale(name, now_ms)` returns why a mark is stale."""
        limits = settings.limits
        self.source_links: Final = SourceLinks(
            engine, self.sources, self.listening.now_ms, limits.sources_max, self.shares.principal_may_add
        )
        # Set afterwards, because the budget is made before the things that it counts.
        self.shares.budget.calls = lambda: self.fair_queue.calls
        self.shares.budget.queues = lambda: (
            self.listeners.held_bytes() + (self.source_links.held_bytes() if self.source_links.is_used else 0)
        )
        self.started_time: Final = time.time()
        """Start time (wall clock, seconds since the epoch). For display only."""
        self.reaper: Final = Reaper(engine, clock, self.listeners, self._expire_slice, self._tick)
        self.stale_reaper: Final = StaleReaper(
            engine, self.time, self.listening, self.sources, self.fail_stale, self.holds.of("stale waits")
        )
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def use_journal(self, journal: Journal) -> None:
        """Journal every change from now on. Call before the first change."""
        self.journal = self.gate.journal = journal
        self.listeners.append(journal)

    @property
    def draining(self) -> bool:
        return self.gate.draining

    def start(self) -> None:
        """Start the background tasks (expiry, session maintenance) on the running loop."""
        assert not self._tasks, "the host is already running"
        self._tasks.append(asyncio.create_task(self.reaper.run(), name="reaper"))
        self._tasks.append(asyncio.create_task(self.stale_reaper.run(), name="stale reaper"))
        self._tasks.append(asyncio.create_task(self._maintain_sessions(), name="session maintenance"))

    async def stop(self) -> None:
        """Stop the background tasks. Pending operations are kept: drain first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def acknowledge(self, session: Session, sequence: int) -> None:
        """Drop a session's results up to `sequence`. Raises `RpcError` if no result has had that number yet."""
        session.acknowledge(sequence)
        self.listeners.acknowledged(session)

    # Unary waits.

    def unary_wait(self, account: Account) -> OpenWait:
        """Return a context manager for a unary wait.

        It yields the operation id and the future of the result, and cancels the operation if it is still pending when
        the block ends. Raises `RpcError` if no registrations are accepted at the moment.
        """
        self.gate.check_unary_wait(account, len(self.unary_waits))
        return OpenWait(self.unary_waits, account)

    def _cancel_unary_waits(self, operation_ids: list[int], account: Account) -> None:
        now_ms = self.time.now_ms()
        cancelled = self.engine.perform(self.unary_waits.owner_of(account), Cancel(operation_ids), now_ms).were_pending
        if any(cancelled):
            self.listeners.cancelled(Cancelled(None, operation_ids, sum(cancelled), now_ms))
        self.deliver()

    # Events.

    async def apply(
        self,
        next_part: Callable[[], IncomingEvents],
        account: Account | None = None,
        turn: Turn = next_loop_turn,
    ) -> IncomingEvents:
        """Apply one part of a batch of events in order, and return it with its effects.

        The part is processed in bounded slices; other tasks run between slices, and events from other calls may be
        interleaved. Events of one caller keep their order. If the call is cancelled, a prefix of the part has been
        applied.

        Args:
            next_part: Decodes the part. Called when the first slice begins, so that both count as one stall.
            account: Charged for new partitions and keys; None: the anonymous account.
            turn: Awaited between slices.

        Raises:
            BatchRejected: The columns cannot be decoded.
        """
        watched, account = self.holds.of("Advance"), account or self.shares.accounts.nobody
        with watched:
            events = next_part()
            has_more = self._apply_slice(events, account)
        while has_more:
            await turn()
            with watched:
                has_more = self._apply_slice(events, account)
        return events

    def _apply_slice(self, events: IncomingEvents, account: Account) -> bool:
        """Apply the next slice and add its effects to `events`. Returns whether events are left."""
        self._take_pause()
        batch, done, now_ms = events.batch, events.done, self.time.now_ms()
        start, is_full = done.next_index, self.shares.budget.is_full
        # For each slice: the share depends on what all accounts hold, which other calls change between two slices.
        self.shares.set_in_engine(account)
        try:
            part = self.engine.perform(
                None, Apply(batch, start, usage=account.usage, is_full=is_full), now_ms, sizes.WORK_PER_SLICE
            )
        except InvalidBatch as error:
            raise unreadable_batch(f"columns.{error.field}", error.message) from None
        replace_reasons(part.refusals, events.refusals)
        self.listeners.applied(Applied(account.principal, batch, start, part, now_ms))
        self.count_refused(part.refusals)
        self.deliver()
        self.reaper.deadline_may_be_earlier()
        done.next_index = part.next_index
        done.ended += part.ended
        done.ended_by_event.extend(part.ended_by_event)
        done.unchanged += part.unchanged
        done.refusals.extend(part.refusals)
        return done.next_index < len(batch.types)

    def note_refused_events(self, account: Account) -> None:
        """Events were refused for the daemon's own reasons: the keys of their account are not silent."""
        self.engine.note_refused_events(account.usage, self.time.now_ms())

    # Cancelling.

    def cancel(self, session: Session, operation_ids: list[int]) -> list[bool]:
        """Cancel operations of a session, and return for each whether it was pending.

        The list is shorter than `operation_ids` if the slice was full: call again with the remaining ids.
        """
        now_ms = self.time.now_ms()
        cancelled = self.engine.perform(session.owner, Cancel(operation_ids), now_ms, sizes.WORK_PER_SLICE).were_pending
        self.listeners.cancelled(Cancelled(session, operation_ids[: len(cancelled)], sum(cancelled), now_ms))
        self.deliver()
        return cancelled

    def extend(self, session: Session, operation_ids: list[int], timeout_ms: int) -> list[bool]:
        """Let operations of a session wait for at least `timeout_ms` from now. Return for each if it was pending."""
        # As at a registration: what is due expires first, and the rest has the whole timeout, never less.
        now_ms = self.registration_ms()
        extended = self.engine.perform(session.owner, Extend(operation_ids, timeout_ms), now_ms).were_pending
        pending = [
            operation_id for operation_id, was_pending in zip(operation_ids, extended, strict=True) if was_pending
        ]
        self.sessions.touch(session, now_ms)
        event = Extended(session, pending, timeout_ms, now_ms)
        if pending:
            self.listeners.extended(event)
        self.deliver()
        return extended

    async def cancel_session(self, session: Session) -> int:
        """Cancel all operations that are pending in a session now, and return their number."""
        owner, up_to_id = session.owner, int(session.owner.highest_operation_id)

        def cancel(now_ms: int) -> tuple[int, bool]:
            if session.dropped:  # the owner may have been reused for another session
                return 0, False
            receipt = self.engine.perform(owner, CancelAll(up_to_id), now_ms, sizes.WORK_PER_SLICE)
            return receipt.ended, receipt.has_more

        def notify(cancelled: int, now_ms: int) -> None:
            self.listeners.cancelled_session(CancelledSession(session, cancelled, now_ms))

        return await self._cancel_in_slices(cancel, notify)

    def close_session(self, session: Session) -> tuple[int, int]:
        """End a session. Returns the number of cancelled operations and of dropped results."""
        # Read before: closing ends the operations and drops the results.
        closed = session.owner.pending, session.outbox.unacknowledged
        self.sessions.close(session, self.time.now_ms())
        self.deliver()
        return closed

    async def cancel_waits(self, name: PartitionName) -> int:
        """Cancel operations that wait on a partition, or on a key as `(key, -1)`, until none is left. Return their
        number.
        """

        def cancel(now_ms: int) -> tuple[int, bool]:
            receipt = self.engine.perform(None, CancelName(name), now_ms, sizes.WORK_PER_SLICE)
            return receipt.ended, receipt.has_more

        def notify(cancelled: int, now_ms: int) -> None:
            self.listeners.cancelled_waits(CancelledWaits(name, cancelled, now_ms))

        return await self._cancel_in_slices(cancel, notify)

    async def _cancel_in_slices(
        self, cancel: Callable[[int], tuple[int, bool]], notify: Callable[[int, int], None]
    ) -> int:
        """Call `cancel` until nothing is left. It returns how many operations it ended, and whether there are more.

        If one slice suffices, listeners are notified with `notify`; otherwise each slice is reported as a cancel of the
        ids that it ended, since operations may be registered between slices.
        """
        watched = self.holds.of("Cancel")
        total = 0
        while True:
            with watched:
                now_ms = self.time.now_ms()
                cancelled, has_more = cancel(now_ms)
                if total or has_more:
                    self.deliver(cancelled_ms=now_ms)
                else:
                    notify(cancelled, now_ms)
                    self.deliver()
            total += cancelled
            if not has_more:
                return total
            await asyncio.sleep(0)

    # Inside.

    def count_refused(self, refusals: Sequence[Refusal]) -> None:
        """Notify listeners of refused registrations or events."""
        if refusals:
            self.listeners.refused(refusals)

    def deliver(self, cancelled_ms: int = -1, *, were_stale: bool = False) -> None:
        """Route completions to their owners: outboxes of sessions, or futures of unary waits.

        Args:
            cancelled_ms: Time of a larger cancel that this is a slice of; -1: none. Listeners are notified of a cancel
                by id for each owner, so a replay of the history ends the same operations at the same times.
            were_stale: Operations failed because of stale marks. This can happen without any connector.
        """
        # After every engine call, before the next one: results that are left over would be attributed to a later call,
        # or to a later owner with the same id.
        for completions in self.engine.take_completions():
            if self.sources or were_stale:
                try:
                    # Before the listeners: journal and archive store the results with it.
                    note_stale_marks(completions, self.sources, self.listening.now_ms())
                except Exception as error:  # noqa: BLE001 - logged and counted; the results are delivered without it
                    self.listeners.failed("SourceTable", "stale", error)
            try:
                self._deliver_to_owner(completions, cancelled_ms)
            except Exception as error:  # noqa: BLE001 - logged and counted; the other owners get their results
                self.listeners.failed("Host", "deliver", error)
        self.listeners.call_finished()

    def _deliver_to_owner(self, completions: Completions, cancelled_ms: int) -> None:
        account = self.unary_waits.account_of_owner(completions.owner_id)
        if account is not None:
            self._notify_cancelled(None, completions, cancelled_ms)
            self.listeners.completed(Completed(None, account.principal, completions))
            self.journal.when_durable(partial(self.unary_waits.deliver, completions))
            return
        session = self.sessions.of_owner(completions.owner_id)
        assert session is not None, f"completions of owner {completions.owner_id}, which is not a session"
        self._notify_cancelled(session, completions, cancelled_ms)
        event = Completed(session, session.account.principal, completions)
        if session.dropped:
            self.listeners.discarded(event)
            return
        # The outbox must come last: the journal derives sequence numbers from the outbox before these results.
        self.listeners.completed(event)
        session.deliver(completions)

    def _notify_cancelled(self, session: Session | None, completions: Completions, cancelled_ms: int) -> None:
        if cancelled_ms >= 0:
            ids = list(completions.operation_ids)
            self.listeners.cancelled(Cancelled(session, ids, len(ids), cancelled_ms))

    def registration_ms(self) -> int:
        """Return the time to register at, which may be ahead of the clock.

        Nothing expires while it is ahead, so due operations must expire first: otherwise a steady stream of
        registrations, one per millisecond, would delay all expiries.
        """
        self._take_pause()
        if 0 <= self.engine.next_expiration_ms() <= self.time.now_ms():
            self._expire_slice()
        return self.time.registration_ms()

    def _tick(self) -> None:
        self._take_pause()
        self.listening.tick()

    def _take_pause(self) -> None:
        """Note the pause that has just ended, if there was one, before anything uses the time after it."""
        pause_ms = self.listening.take_pause()
        if not pause_ms:
            return
        for stream in self.sessions.streams():
            stream.paused()
        now_ms = self.time.now_ms()
        if not self.engine.perform(None, Pause(pause_ms), now_ms).unchanged:
            LOGGER.info("the process was stopped or busy: silences do not count %d ms", pause_ms)
            self.listeners.paused(pause_ms, now_ms)

    def _expire_slice(self) -> None:
        # The time of the engine is the end of a millisecond that is not over. Operations that are due at that time
        # would expire early by the clock.
        if self.time.is_ahead:
            return
        now_ms = self.time.now_ms()
        with self._expiry:
            if self.engine.perform(None, PassTime(sizes.EXPIRED_PER_SLICE), now_ms, sizes.WORK_PER_SLICE).ended:
                self.listeners.expired(now_ms)
            self.deliver()

    def fail_stale(self, owner_id: int, operation_ids: list[int], stale: set[PartitionName], now_ms: int) -> None:
        """Fail operations of the owner `owner_id` because of stale marks, at most a slice of them."""
        # Found by slot in the engine, which knows owners only: it may be a session, or the unary waits of an account.
        session = self.sessions.of_owner(owner_id)
        if session is not None:
            owner = session.owner
        else:
            account = self.unary_waits.account_of_owner(owner_id)
            assert account is not None, f"stale waits of owner {owner_id}, which does not exist"
            owner = self.unary_waits.owner_of(account)
        failed = self.engine.perform(owner, FailStale(operation_ids, stale), now_ms, sizes.WORK_PER_SLICE).were_pending
        self.listeners.failed_stale(FailedStale(session, operation_ids[: len(failed)], stale, sum(failed), now_ms))
        self.deliver(were_stale=True)

    def _end_dropped(self, session: Session, now_ms: int) -> bool:
        """Cancel a slice of a dropped session's operations, without results. Returns whether none is left."""
        with self._session_drop:
            receipt = self.engine.perform(session.owner, CancelAll(), now_ms, sizes.WORK_PER_SLICE)
            cancelled, has_more = receipt.ended, receipt.has_more
            is_first = session not in self._dropped
            # Before anything else that may raise: the rest is cancelled nevertheless.
            if has_more and is_first:
                self._dropped.append(session)
                if len(self._dropped) == 1:
                    self._tasks.append(asyncio.create_task(self._end_all_dropped(), name="dropped sessions"))
            # The same rule as in `_cancel_in_slices`: one slice is reported as the cancel of the session, several as
            # cancels by id.
            if cancelled and not has_more and is_first:
                event = CancelledSession(session, cancelled, now_ms)
                self.listeners.cancelled_with_session(event)
                self.deliver()
            elif cancelled:
                self.deliver(cancelled_ms=now_ms)
        return not has_more

    async def _end_all_dropped(self) -> None:
        """Cancel the operations of all dropped sessions, slice by slice. Errors are logged only."""
        while self._dropped:
            # First, because the slice that found more to do has just run.
            await asyncio.sleep(0)
            session = self._dropped[0]
            try:
                if self._end_dropped(session, self.time.now_ms()):
                    self._dropped.popleft()
                    self.sessions.forget(session, self.time.now_ms())
            except Exception:
                LOGGER.exception("cancelling the operations of a dropped session failed; will be retried")
                await asyncio.sleep(RETRY_AFTER_FAULT_S)
        task = asyncio.current_task()
        assert task is not None, "runs as a task"
        # Otherwise the list would grow with each large session that is dropped.
        self._tasks.remove(task)

    async def _maintain_sessions(self) -> None:
        """Send heartbeats, end streams of silent peers, and drop expired sessions. Errors are logged only."""
        interval_ms = self.settings.session.heartbeat_interval_ms
        # Four looks in each interval, so a heartbeat is late by a quarter of it at most.
        turn_s = min(interval_ms / 4, 1_000) / 1_000
        while True:
            await asyncio.sleep(turn_s)
            try:
                self._take_pause()
                now_ms = self.time.now_ms()
                for stream in self.sessions.streams():
                    stream.check(now_ms, interval_ms)
                while self.sessions.drop_expired(now_ms):
                    await asyncio.sleep(0)
                    now_ms = self.time.now_ms()
                self.deliver()
                await self.waiting_callers.check_some()
                self.listeners.tick()
            except Exception:
                LOGGER.exception("session maintenance failed; will be retried")


def make_host(settings: Settings, metrics: Listener, clock: Clock, started_ms: int) -> Host:
    """Create the engine, whose time starts at `started_ms`, and its host, each with its limits."""
    limits = settings.limits.model_dump(include=set(EngineLimitsSettings.model_fields))
    engine = Engine(EngineLimits(**limits), started_ms, **settings.engine.model_dump())
    settings_of_host = HostSettings(settings.limits, settings.session, settings.shares)
    return Host(engine, clock, settings_of_host, metrics, RefusalLog(clock))
