"""Owner of the engine, the sessions and the unary waits. Every change of state goes through it, on the event loop.

`perform` is the only caller of `Engine.perform`: shares and permissions, the engine, the listeners, the delivery of
results, the reaper, and the demand of sources follow each other there for every call.

Methods that change the engine are synchronous: no other task runs between two awaits, so no lock is needed. Long work
(a batch of events that ends many operations, many expiries at once, shutdown) is split into slices, and the loop is
free between them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from purgatory import sizes
from purgatory.clock import Clock, EngineTime, ListeningTime
from purgatory.engine.batches import PartitionName, Receipt
from purgatory.engine.calls import (
    Apply,
    Call,
    Cancel,
    CancelAll,
    CancelName,
    Extend,
    FailStale,
    PassTime,
    Pause,
    Register,
)
from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.service.access.account import Account
from purgatory.service.access.audit import NAME
from purgatory.service.access.authorization_filter import NO_REASONS, Reasons, permitted, replace_reasons
from purgatory.service.access.roles import WAIT
from purgatory.service.budget.shares import Shares
from purgatory.service.errors import from_refusal, unreadable_batch
from purgatory.service.fair_queue import FairQueue, Turn, next_loop_turn
from purgatory.service.gate import Gate
from purgatory.service.listeners.listener import Called, Completed, Journal, Listener, Listeners
from purgatory.service.listeners.refusal_log import RefusalLog
from purgatory.service.listeners.result_tail import ResultTail
from purgatory.service.loop_stalls import LoopStalls
from purgatory.service.reaper import Reaper
from purgatory.service.registration import Registration
from purgatory.service.sessions.refused import located
from purgatory.service.sessions.session import Session
from purgatory.service.sessions.session_table import Sessions
from purgatory.service.sessions.unary_waits import OpenWait, UnaryWaits, WaitingCallers
from purgatory.service.settings import EngineLimitsSettings, HostSettings, Settings
from purgatory.service.sources.source_links import SourceLinks
from purgatory.service.sources.source_table import SourceTable
from purgatory.service.sources.stale_reaper import StaleReaper, note_stale_marks
from purgatory.service.translate.events import IncomingEvents
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.shards import ONE_SHARD, Shards

LOGGER: Final = logging.getLogger(__name__)

RETRY_AFTER_FAULT_S: Final = 1.0
"""Pause after an error while the operations of dropped sessions are cancelled, seconds."""

STARTING: Final = (Register, Extend)
"""Calls from which an operation has its whole timeout: what is due expires first, and the time is rounded up."""
ADDING: Final = (Register, Apply)
"""Calls that may add operations, partitions or keys, so that shares limit them."""
CANCELLING: Final = (CancelAll, CancelName)
"""Calls that are reported as cancels by id if they take several slices."""


class Host:
    """Owns the engine. Call `start` on the loop that will use it, and at the end `draining.drain`, then `stop`."""

    def __init__(
        self, engine: Engine, clock: Clock, settings: HostSettings, *listeners: Listener, shards: Shards = ONE_SHARD
    ) -> None:
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
        self.fair_queue: Final = FairQueue(self.listeners.waited_for_turn)
        self.shares: Final = Shares(settings, engine, lambda: self.fair_queue.calls, self._queued_bytes)
        self.holds: Final = LoopStalls()
        """Stall timers of everything that may take long, by name of the call."""
        self._expiry: Final = self.holds.of("expiry")
        self._session_drop: Final = self.holds.of("session drop")
        self._dropped: Final[deque[Session]] = deque()
        """Closed sessions whose pending operations are still being cancelled."""
        self.sessions: Final = Sessions(
            engine, settings, self.listeners, self.holds, self._end_dropped, self.time.now_ms, self.shares, shards
        )
        self.unary_waits: Final = UnaryWaits(engine, self.time.now_ms, self._cancel_unary_waits)
        self.waiting_callers: Final = WaitingCallers()
        self.gate: Final = Gate(settings.limits, self.listeners, self.shares, engine, self.time)
        self.sources: Final = SourceTable()
        """Connector state; `stale(name, now_ms)` returns why a mark is stale."""
        may_add = self.shares.principal_may_add
        self.source_links: Final = SourceLinks(engine, self.sources, self.listening.now_ms, may_add)
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

    def _queued_bytes(self) -> int:
        """Bytes that listeners have not written yet, and those that sources have not sent."""
        return self.listeners.held_bytes() + (self.source_links.held_bytes() if self.source_links.is_used else 0)

    def acknowledge(self, session: Session, sequence: int) -> None:
        """Drop a session's results up to `sequence`. Raises `RpcError` if no result has had that number yet."""
        session.acknowledge(sequence)
        session.acknowledged_ms = self.time.now_ms()
        self.listeners.acknowledged(session)

    # The engine.

    def perform(
        self,
        account: Account | None,
        session: Session | None,
        call: Call,
        *,
        reasons: Reasons = NO_REASONS,
        continues: bool = False,
    ) -> Receipt:
        """Perform a call on the engine, with all that belongs to it, at most a slice of work.

        Args:
            account: The caller's; None: the host's own call.
            session: The session whose operations are meant; None: the unary waits of the account, or all operations.
            call: A registration may contain operations that the caller is not allowed; they are refused.
            reasons: Refusals of events found earlier, which replace those of the engine.
            continues: The call continues one that did not fit into a slice; see `Listener.called`.

        Raises:
            BatchRejected: The columns of a batch cannot be decoded. Nothing has been changed.
        """
        kind, registration = type(call), call if isinstance(call, Register) else None
        now_ms = self._registration_ms() if kind in STARTING else self._now_ms()
        owner, allowed, principal = None if session is None else session.owner, call, ""
        if account is not None:
            principal = account.principal
            if owner is None and kind is not Apply:
                owner = self.unary_waits.owner_of(account)
            if kind in ADDING:
                # For each slice: it depends on the holdings of all accounts, which other calls change in between.
                self.shares.set_in_engine(account)
            if registration is not None:
                allowed, reasons = permitted(account, registration)
        try:
            receipt = self.engine.perform(owner, allowed, now_ms, sizes.WORK_PER_SLICE)
        except InvalidBatch as error:
            raise unreadable_batch(f"columns.{error.field}", error.message) from None
        if reasons:
            replace_reasons(receipt.refusals, reasons)
        if registration is not None and session is not None and session.refused_ids:
            session.refused_ids.correct(receipt, registration.batch, registration.known_up_to)
        # Operations may be registered between two slices, so a replay of this call would cancel others.
        by_id = continues or (receipt.has_more and kind in CANCELLING)
        if not by_id:
            self.listeners.called(Called(session, principal, call, receipt, now_ms))
        self._deliver(now_ms, by_id=by_id, were_stale=kind is FailStale)
        self.reaper.deadline_may_be_earlier()
        if registration is not None:
            self._registered(principal, registration, reasons)
        return receipt

    def _registered(self, principal: str, call: Register, denied: Reasons) -> None:
        # After the delivery: an operation that ended at once needs no mark, and the engine is asked which have waits.
        if denied:
            first = next(iter(denied.values())).message
            self.sessions.accounts.audit.refused(NAME, principal, role=WAIT, name=first, count=len(denied))
        if self.source_links.demand.is_wanted:
            self.source_links.demand.registered(call.batch.partitions)
        if call.batch.stale_timeouts_ms:
            self.stale_reaper.may_have_come()

    def restore(self, session: Session, saved: SavedOperations, gone: bytes) -> int:
        """Restore saved operations of a session; overdue ones end. Returns how many (see `Snapshots.restore`)."""
        now_ms, before = self.time.now_ms(), self.engine.pending
        restored = self.engine.restore(session.owner, saved, gone, now_ms)
        receipt = Receipt()
        receipt.ended = before + restored - self.engine.pending
        self.listeners.called(Called(None, "", PassTime(restored), receipt, now_ms))
        self._deliver(now_ms)
        return restored

    def note_refused_events(self, account: Account) -> None:
        """Events were refused for the daemon's own reasons: the keys of their account are not silent."""
        self.engine.note_refused_events(account.usage, self.time.now_ms())

    # Registrations and events.

    def registration(self, session: Session) -> Registration:
        return Registration(session, self.gate, self.listeners, self.perform, self.time.now_ms)

    def unary_wait(self, account: Account) -> OpenWait:
        """Return a context manager for a unary wait.

        It yields the operation id and the future of the result, and cancels the operation if it is still pending when
        the block ends. Raises `RpcError` if no registrations are accepted at the moment.
        """
        self.gate.check_unary_wait(account, len(self.unary_waits))
        return OpenWait(self.unary_waits, account)

    def register_unary_wait(self, run: OperationRun, account: Account) -> None:
        """Register the operation of a unary wait. Raises `RpcError` if the operation is refused."""
        self.gate.check_unary_items(account, len(run.batch.item_indexes))
        # Known ids up to 0: ids of unary waits are assigned here, so none is a repetition.
        receipt = self.perform(account, None, Register(run.kind, run.batch, 0))
        if receipt.refusals:
            self.listeners.refused(receipt.refusals)
            retry_after_ms = self.gate.retry_after_ms(account, run)
            raise from_refusal(located(run, receipt.refusals[0]), "operation", retry_after_ms)

    async def apply(
        self, next_part: Callable[[], IncomingEvents], account: Account | None = None, turn: Turn = next_loop_turn
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
        done = events.done
        call = Apply(events.batch, done.next_index, account.usage, self.shares.budget.is_full)
        part = self.perform(account, None, call, reasons=events.refusals)
        if part.refusals:
            self.listeners.refused(part.refusals)
        if not (part.has_more or call.start):  # nearly always: all events fit into one slice
            events.done = part
            return False
        done.refusals.extend(part.refusals)
        done.next_index = part.next_index
        done.ended += part.ended
        done.ended_by_event.extend(part.ended_by_event)
        done.unchanged += part.unchanged
        return part.has_more

    # Cancelling.

    def cancel(self, session: Session, operation_ids: list[int]) -> list[bool]:
        """Cancel operations of a session, and return for each whether it was pending.

        The list is shorter than `operation_ids` if the slice was full: call again with the remaining ids.
        """
        return self.perform(session.account, session, Cancel(operation_ids)).were_pending

    def _cancel_unary_waits(self, operation_ids: list[int], account: Account) -> None:
        while operation_ids:
            done = self.perform(account, None, Cancel(operation_ids)).were_pending
            operation_ids = operation_ids[len(done) :]

    def extend(self, session: Session, operation_ids: list[int], timeout_ms: int) -> list[bool]:
        """Let operations of a session wait for at least `timeout_ms` from now. Return for each if it was pending."""
        self.sessions.touch(session, self.time.now_ms())
        return self.perform(session.account, session, Extend(operation_ids, timeout_ms)).were_pending

    async def cancel_session(self, session: Session) -> int:
        """Cancel all operations that are pending in a session now, and return their number."""
        return await self._cancel_in_slices(session, CancelAll(session.owner.highest_operation_id))

    async def cancel_waits(self, name: PartitionName) -> int:
        """Cancel operations that wait on a partition, or on a key as `(key, -1)`, until none is left. Return their
        number.
        """
        return await self._cancel_in_slices(None, CancelName(name))

    async def _cancel_in_slices(self, session: Session | None, call: Call) -> int:
        watched, total, has_more = self.holds.of("Cancel"), 0, True
        while has_more:
            if total:
                await asyncio.sleep(0)
            if session is not None and session.dropped:  # its owner may belong to another session by now
                break
            with watched:
                receipt = self.perform(None, session, call, continues=total > 0)
            total += receipt.ended
            has_more = receipt.has_more
        return total

    def close_session(self, session: Session) -> tuple[int, int]:
        """End a session. Returns the number of cancelled operations and of dropped results."""
        # Read before: closing ends the operations and drops the results.
        closed = session.owner.pending, session.outbox.unacknowledged
        self.sessions.close(session)
        return closed

    def _end_dropped(self, session: Session) -> bool:
        """Cancel a slice of a dropped session's operations, without results. Returns whether none is left."""
        with self._session_drop:
            is_first, has_more = session not in self._dropped, True
            try:
                has_more = self.perform(None, session, CancelAll(), continues=not is_first).has_more
            finally:
                # Also after an exception: the rest is cancelled nevertheless.
                if has_more and is_first:
                    self._dropped.append(session)
                    if len(self._dropped) == 1:
                        self._tasks.append(asyncio.create_task(self._end_all_dropped(), name="dropped sessions"))
        return not has_more

    async def _end_all_dropped(self) -> None:
        """Cancel the operations of all dropped sessions, slice by slice. Errors are logged only."""
        while self._dropped:
            # First, because the slice that found more to do has just run.
            await asyncio.sleep(0)
            session = self._dropped[0]
            try:
                if self._end_dropped(session):
                    self._dropped.popleft()
                    self.sessions.forget(session)
            except Exception:
                LOGGER.exception("cancelling the operations of a dropped session failed; will be retried")
                await asyncio.sleep(RETRY_AFTER_FAULT_S)
        task = asyncio.current_task()
        assert task is not None, "runs as a task"
        # Otherwise the list would grow with each large session that is dropped.
        self._tasks.remove(task)

    def fail_stale(self, owner_id: int, operation_ids: list[int], stale: set[PartitionName]) -> None:
        """Fail operations of the owner `owner_id` because of stale marks, at most a slice of them."""
        # Found by slot in the engine, which knows owners only: it may be a session, or the unary waits of an account.
        session = self.sessions.of_owner(owner_id)
        account = self.unary_waits.account_of_owner(owner_id) if session is None else session.account
        assert account is not None, f"stale waits of owner {owner_id}, which does not exist"
        self.perform(account, session, FailStale(operation_ids, stale))

    # Delivery.

    def _deliver(self, now_ms: int, *, by_id: bool = False, were_stale: bool = False) -> None:
        """Route the completions of a call to their owners: outboxes of sessions, or futures of unary waits.

        `by_id`: listeners are notified of a cancel by id for each owner. `were_stale`: operations failed because of
        stale marks, which can happen without any connector.
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
                self._deliver_to_owner(completions, now_ms if by_id else None)
            except Exception as error:  # noqa: BLE001 - logged and counted; the other owners get their results
                self.listeners.failed("Host", "deliver", error)
        self.listeners.call_finished()

    def _deliver_to_owner(self, completions: Completions, cancelled_ms: int | None) -> None:
        account = self.unary_waits.account_of_owner(completions.owner_id)
        session = None if account is not None else self.sessions.of_owner(completions.owner_id)
        if session is not None:
            account = session.account
        assert account is not None, f"completions of owner {completions.owner_id}, which does not exist"
        if cancelled_ms is not None:
            receipt = Receipt()
            receipt.ended = len(completions)
            receipt.were_pending.extend([True] * len(completions))
            cancel = Cancel(list(completions.operation_ids))
            self.listeners.called(Called(session, account.principal, cancel, receipt, cancelled_ms))
        event = Completed(session, account.principal, completions)
        if session is None:
            self.listeners.completed(event)
            self.journal.when_durable(partial(self.unary_waits.deliver, completions))
        elif session.dropped:
            self.listeners.discarded(event)
        else:
            # The outbox must come last: the journal derives sequence numbers from the outbox before these results.
            self.listeners.completed(event)
            session.deliver(completions)

    # Time.

    def _registration_ms(self) -> int:
        """Return the time to register at, which may be ahead of the clock.

        Nothing expires while it is ahead, so due operations must expire first: otherwise a steady stream of
        registrations, one per millisecond, would delay all expiries.
        """
        if 0 <= self.engine.next_expiration_ms() <= self._now_ms():
            self._expire_slice()
        return self.time.registration_ms()

    def _now_ms(self) -> int:
        """Return the time, once the pause that has just ended, if there was one, is noted."""
        now_ms = self.time.now_ms()
        pause_ms = self.listening.take_pause(now_ms)
        if not pause_ms:
            return now_ms
        for stream in self.sessions.streams():
            stream.paused()
        if not self.perform(None, None, Pause(pause_ms)).unchanged:
            LOGGER.info("the process was stopped or busy: silences do not count %d ms", pause_ms)
        return self.time.now_ms()

    def _tick(self) -> None:
        self._now_ms()
        self.listening.tick()

    def _expire_slice(self) -> None:
        # The time of the engine is the end of a millisecond that is not over. Operations that are due at that time
        # would expire early by the clock.
        if not self.time.is_ahead:
            with self._expiry:
                self.perform(None, None, PassTime(sizes.EXPIRED_PER_SLICE))

    async def _maintain_sessions(self) -> None:
        """Send heartbeats, end streams of silent peers, and drop expired sessions. Errors are logged only."""
        interval_ms = self.settings.session.heartbeat_interval_ms
        # Four looks in each interval, so a heartbeat is late by a quarter of it at most.
        turn_s = min(interval_ms / 4, 1_000) / 1_000
        while True:
            await asyncio.sleep(turn_s)
            try:
                now_ms = self._now_ms()
                for stream in self.sessions.streams():
                    stream.check(now_ms, interval_ms)
                while self.sessions.drop_expired(now_ms):
                    await asyncio.sleep(0)
                    now_ms = self.time.now_ms()
                await self.waiting_callers.check_some()
                self.listeners.tick()
            except Exception:
                LOGGER.exception("session maintenance failed; will be retried")


def make_host(settings: Settings, metrics: Listener, clock: Clock, started_ms: int, shards: Shards = ONE_SHARD) -> Host:
    """Create the engine, whose time starts at `started_ms`, and its host, each with its limits."""
    limits = settings.limits.model_dump(include=set(EngineLimitsSettings.model_fields))
    engine = Engine(EngineLimits(**limits), started_ms, **settings.engine.model_dump())
    settings_of_host = HostSettings(settings.limits, settings.session, settings.shares)
    return Host(engine, clock, settings_of_host, metrics, RefusalLog(clock), shards=shards)
