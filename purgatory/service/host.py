"""The one owner on the event loop: engine, sessions, waits. Every change of state passes through it.

All methods that change the engine are plain calls: between two awaits nothing else runs, so no lock exists. Long work
(a batch of events that ends many operations, a herd of expiries, the end of the daemon) goes in slices, with the loop
free in between. After every engine call the completions are taken and given to whom they belong.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final

from purgatory.clock import Clock
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, EventsReceipt, PartitionName, Refusal, RegisterReceipt
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_checks import OPERATION_ID_MAX
from purgatory.service.engine_time import EngineTime
from purgatory.service.host_limits import HostLimits
from purgatory.service.listeners.archive import Archive, NoArchive
from purgatory.service.listeners.journal import Journal, NoJournal
from purgatory.service.listeners.observer import Observer
from purgatory.service.reaper import EXPIRED_PER_SLICE, Reaper
from purgatory.service.rpc.refusals import BatchRefused, from_refusal, unavailable, unreadable_batch
from purgatory.service.sessions.outbox import RefusedOperations, ResultSlice, slices_of
from purgatory.service.sessions.session import Session, Sessions
from purgatory.service.sessions.unary_waits import Waits
from purgatory.service.translate.operations import OperationRun

LOGGER: Final = logging.getLogger(__name__)

ENDED_PER_SLICE: Final = 2_000
"""Events and ended operations that one engine call may come to before the loop is free again."""

SHUTTING_DOWN_MESSAGE: Final = "the daemon is shutting down; try another one, or later"
POLL_WHILE_DRAINING_S: Final = 0.01
UNANSWERED_AFTER_MS: Final = 1_000
"""While draining: results that were written so long ago and not acknowledged are not waited for any longer."""


class Registered:
    """What became of a batch of registrations in a session; `refused` are refusals with their operation ids."""

    def __init__(self) -> None:
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        self.refused: list[tuple[Refusal, int]] = []


class Host:
    """Owns the engine. `start` it on the loop that will call it, `drain` and `stop` it at the end."""

    def __init__(self, engine: Engine, clock: Clock, limits: HostLimits, observer: Observer) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        """For sessions and streams."""
        self.time: Final = EngineTime(clock)
        """For the engine."""
        self.limits: Final = limits
        self.archive: Archive = NoArchive()
        """Where history goes; to be set before anything happens."""
        self.journal: Journal = NoJournal()
        """What keeps changes over a restart; to be set before anything happens."""
        self.sessions: Final = Sessions(engine, limits, observer, self._before_drop)
        self.waits: Final = Waits(engine.add_owner())
        self.draining = False
        self.started_time: Final = time.time()
        """Wall clock, seconds: to be shown, never to be counted with."""
        self.reaper: Final = Reaper(engine, clock, observer, self._advance_clock)
        self._observer: Final = observer
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def start(self) -> None:
        """Starts the reaper and the keeper of the sessions on the running loop."""
        assert not self._tasks, "the host runs already"
        self._tasks.append(asyncio.create_task(self.reaper.run(), name="reaper"))
        self._tasks.append(asyncio.create_task(self._keep_sessions(), name="session keeper"))

    async def stop(self) -> None:
        """Stops both. What is pending stays pending: `drain` first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    # Registrations.

    def register(
        self, session: Session, runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]
    ) -> Registered:
        """Registers a batch in a session. `refused` are those refused before, with their ids.

        Each operation is accepted, already known, or refused; a refused one also ends as a result. Raises
        `BatchRefused` when the columns cannot be read, or when there is no room even for refusals.
        """
        self._check_open()
        self._check_room_for_refusals(session)
        known = session.owner.highest_operation_id
        answer = Registered()
        news = [(refusal, operation_id, 0) for refusal, operation_id in refused]
        reason = self._why_not_now(session)
        for run in runs:
            if reason is not None:
                news.extend(_all_refused(run, reason))
                self._record_refused(session, run, reason, known)
            else:
                news.extend(self._register_run(session, run, answer))
        news = self._only_new(news, known, answer)
        if news:
            news.sort(key=lambda entry: entry[0].index)
            answer.refused = [(refusal, operation_id) for refusal, operation_id, _ in news]
            self._count_refused([refusal for refusal, _ in answer.refused])
            self._answer_refused(session, _without_repeated(news, runs))
        answer.highest_operation_id = session.owner.highest_operation_id
        return answer

    def _why_not_now(self, session: Session) -> Refusal | None:
        """Why nothing can be registered in this session at present, if so. The refusal's index means nothing."""
        if self.draining:
            return Refusal(0, codes.UNAVAILABLE, "", SHUTTING_DOWN_MESSAGE)
        closed = self.archive.why_closed()
        if closed:
            return Refusal(0, codes.UNAVAILABLE, "", closed)
        limit = self.limits.unacknowledged_results_max
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            return Refusal(
                0,
                codes.RESOURCE_EXHAUSTED,
                "",
                f"the session has {unacknowledged} unacknowledged results, the limit is {limit}: read and acknowledge",
            )
        return None

    def _check_open(self) -> None:
        """What cannot be kept is not begun: nothing of it is known afterwards."""
        failing = self.journal.why_closed()
        if failing is not None:
            raise BatchRefused(failing)

    def acknowledge(self, session: Session, sequence: int) -> None:
        """All results of a session up to `sequence` have arrived. Refuses one that was never given."""
        session.acknowledge(sequence)
        self.journal.acknowledged(session)

    def _check_room_for_refusals(self, session: Session) -> None:
        """Refused registrations are results too: a caller that reads none of them is stopped here."""
        limit = self.limits.unacknowledged_results_max + self.limits.operations_per_batch_max
        unacknowledged = session.outbox.unacknowledged
        if unacknowledged >= limit:
            message = f"the session has {unacknowledged} unacknowledged results: read and acknowledge, then send again"
            raise BatchRefused(Refusal(0, codes.RESOURCE_EXHAUSTED, "", message))

    def _register_run(self, session: Session, run: OperationRun, answer: Registered) -> list[tuple[Refusal, int, int]]:
        now_ms = self._registration_ms()
        try:
            receipt = self.engine.register(session.owner, run.kind, run.batch, now_ms)
        except InvalidBatch as error:
            raise unreadable_batch(f"columns.{error.field}", error.message) from None
        self.journal.changed(session)
        self.archive.registered(session, run.kind, run.batch, receipt, now_ms)
        self._observer.registered(run.kind, receipt.accepted, receipt.already_known, len(receipt.refusals))
        self.deliver()
        self.reaper.deadline_may_be_earlier()
        answer.accepted += receipt.accepted
        answer.already_known += receipt.already_known
        ids = run.batch.operation_ids
        return [(_placed(run, refusal), ids[refusal.index], run.kind) for refusal in receipt.refusals]

    @staticmethod
    def _only_new(
        refused: list[tuple[Refusal, int, int]], known: int, answer: Registered
    ) -> list[tuple[Refusal, int, int]]:
        """Without those whose id was known before this batch: a re-sent refusal has had its result."""
        news = [entry for entry in refused if not 0 < entry[1] <= known]
        answer.already_known += len(refused) - len(news)
        return news

    def _answer_refused(self, session: Session, refused: list[tuple[Refusal, int, int]]) -> None:
        """Refused registrations get results like all others, and their ids count as known from now on."""
        if not refused:
            return
        self.journal.refused(session, refused)
        session.outbox.append(slices_of(RefusedOperations(refused), [refusal for refusal, _, _ in refused]))
        session.wake()
        known = [operation_id for _, operation_id, _ in refused if operation_id <= OPERATION_ID_MAX]
        session.owner.highest_operation_id = max(session.owner.highest_operation_id, *known, 0)

    def _count_refused(self, refusals: Sequence[Refusal]) -> None:
        counts: dict[int, int] = {}
        for refusal in refusals:
            counts[refusal.code] = counts.get(refusal.code, 0) + 1
        for code, count in counts.items():
            self._observer.refused(code, count)

    def waiting(self) -> Waiting:
        """A unary wait, to be entered: refuses while nothing may be registered."""
        if self.draining:
            raise unavailable(SHUTTING_DOWN_MESSAGE)
        closed = self.archive.why_closed()
        if closed:
            raise unavailable(closed)
        failing = self.journal.why_closed()
        if failing is not None:
            raise from_refusal(failing, "journal")
        return Waiting(self)

    def cancel_wait(self, operation_id: int) -> None:
        """The call of a unary wait has ended before its operation."""
        now_ms = self.time.now_ms()
        if any(self.engine.cancel(self.waits.owner, [operation_id], now_ms)):
            self.archive.cancelled(None, [operation_id], 1, now_ms)
        self.deliver()

    def register_wait(self, run: OperationRun) -> None:
        """Registers the one operation of a unary wait. Refuses the call if the operation is refused."""
        now_ms = self._registration_ms()
        receipt = self.engine.register(self.waits.owner, run.kind, run.batch, now_ms)
        self.archive.registered(None, run.kind, run.batch, receipt, now_ms)
        self._observer.registered(run.kind, receipt.accepted, receipt.already_known, len(receipt.refusals))
        self._count_refused(receipt.refusals)
        self.deliver()
        self.reaper.deadline_may_be_earlier()
        if receipt.refusals:
            raise from_refusal(_placed(run, receipt.refusals[0]), "operation")

    # Events.

    async def apply(self, batch: EventBatch) -> EventsReceipt:
        """Applies a batch of events, in order, in slices. Raises `BatchRefused` when its columns cannot be read, or
        nothing may be admitted.

        Events of other calls may come between two slices; each caller's own keep their order. A call that is cancelled
        has applied the events up to some slice.
        """
        closed = self.archive.why_closed()
        if closed:
            raise BatchRefused(Refusal(0, codes.UNAVAILABLE, "", closed))
        self._check_open()
        whole = EventsReceipt()
        while True:
            start, now_ms = whole.next_index, self.time.now_ms()
            try:
                part = self.engine.apply(batch, now_ms, start, ENDED_PER_SLICE)
            except InvalidBatch as error:
                raise unreadable_batch(f"columns.{error.field}", error.message) from None
            self.journal.applied(batch, start, part)
            self.archive.applied(batch, start, part, now_ms)
            self._observer.events(batch, part, start)
            self._count_refused(part.refusals)
            self.deliver()
            self.reaper.deadline_may_be_earlier()
            _join(whole, part)
            if whole.next_index >= len(batch.types):
                return whole
            await asyncio.sleep(0)

    # Cancelling.

    def cancel(self, session: Session, operation_ids: list[int]) -> list[bool]:
        """Cancels operations of a session. True: cancelled now; False: it was not pending."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel(session.owner, operation_ids, now_ms)
        self.archive.cancelled(session, operation_ids, sum(cancelled), now_ms)
        self.deliver()
        return cancelled

    def cancel_session(self, session: Session) -> int:
        """Cancels all that is pending in a session; returns how many."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel_all(session.owner, now_ms)
        self.archive.cancelled_session(session, cancelled, now_ms)
        self.deliver()
        return cancelled

    def cancel_partition(self, name: PartitionName) -> int:
        """Cancels all that waits on a partition; returns how many."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel_partition(name, now_ms)
        self.archive.cancelled_partition(name, cancelled, now_ms)
        self.deliver()
        return cancelled

    def cancel_key(self, key: str) -> int:
        """Cancels all that waits on a key; returns how many."""
        now_ms = self.time.now_ms()
        cancelled = self.engine.cancel_key(key, now_ms)
        self.archive.cancelled_key(key, cancelled, now_ms)
        self.deliver()
        return cancelled

    # The end.

    async def drain(self, grace_s: float) -> None:
        """Refuses new work, ends all pending as SHUTTING_DOWN, and delivers the results while `grace_s` lasts."""
        self.draining = True
        deadline_s = asyncio.get_running_loop().time() + grace_s
        await self._end_pending()
        await self._until(self._is_flushed, deadline_s)
        for connection in self.sessions.connections():
            connection.shut_down()
        await self._until(lambda: not self.sessions.connections(), deadline_s)
        kept = self.sessions.unacknowledged_results
        if kept:
            LOGGER.warning("%d results were not acknowledged before the end", kept)

    async def _end_pending(self) -> None:
        """Nothing pending is forgotten: it ends, but for what the journal keeps for the next daemon."""
        owner = self.waits.owner if self.journal.keeps else None
        ended = 0
        while count := self.engine.shut_down(now_ms := self.time.now_ms(), ENDED_PER_SLICE, owner):
            ended += count
            self.archive.shut_down(count, now_ms)
            self.deliver()
            await asyncio.sleep(0)
        assert owner is not None or self.engine.pending == 0, f"{self.engine.pending} operations were forgotten"
        LOGGER.info("%d pending operations ended as shutting down, %d are kept", ended, self.engine.pending)

    @staticmethod
    async def _until(condition: Callable[[], bool], deadline_s: float) -> None:
        """Waits for it while there is time. Polled: it happens once in a life, and no hot path pays for it."""
        loop = asyncio.get_running_loop()
        while not condition() and loop.time() < deadline_s:  # noqa: ASYNC110 - see above
            await asyncio.sleep(POLL_WHILE_DRAINING_S)

    def _is_flushed(self) -> bool:
        """True: every connected session has its results, as far as they are still being read."""
        now_ms = self.clock.now_ms()
        for connection in self.sessions.connections():
            outbox = connection.session.outbox
            if connection.closing or not outbox.unacknowledged:
                continue
            if outbox.unwritten or now_ms - connection.last_write_ms < UNANSWERED_AFTER_MS:
                return False
        return True

    # Inside.

    def deliver(self) -> None:
        """Gives what has ended to whom it belongs."""
        for completions in self.engine.take_completions():
            self._observer.completed(completions)
            if completions.owner_id == self.waits.owner.owner_id:
                self.archive.ended(None, completions)
                self.journal.when_durable(partial(self.waits.deliver, completions))
                continue
            session = self.sessions.of_owner(completions.owner_id)
            assert session is not None, f"completions of owner {completions.owner_id}, which is no session"
            self.archive.ended(session, completions)
            self.journal.ended(session, completions)
            session.deliver(completions)
        self.archive.finish()

    def _registration_ms(self) -> int:
        """The time to register at. It may be ahead, so what is due expires first: however many registrations come,
        time passes for those that wait.
        """
        if 0 <= self.engine.next_expiration_ms() <= self.clock.now_ms():
            self._advance_clock()
        return self.time.registration_ms()

    def _advance_clock(self) -> None:
        """Expires a slice of what is due."""
        if self.time.is_ahead:
            return
        now_ms = self.time.now_ms()
        if self.engine.advance_clock(now_ms, EXPIRED_PER_SLICE):
            self.archive.expired(now_ms)
        self.deliver()

    def _before_drop(self, session: Session, now_ms: int) -> None:
        """The engine tells nobody how the operations of an owner that is removed end; history has to say it."""
        self.journal.dropped(session)
        if not self.archive.keeps:
            return
        cancelled = self.engine.cancel_all(session.owner, now_ms)
        if cancelled:
            self.archive.cancelled_session(session, cancelled, now_ms)
            for completions in self.engine.take_completions():
                assert completions.owner_id == session.owner.owner_id, f"completions of owner {completions.owner_id}"
                self.archive.ended(session, completions)
            self.archive.finish()

    def _record_refused(self, session: Session, run: OperationRun, reason: Refusal, known: int) -> None:
        """A whole run that the engine never saw: history has it as refused, except what was known before."""
        if not self.archive.keeps or self.archive.why_closed():
            return
        receipt = RegisterReceipt()
        for place, operation_id in enumerate(run.batch.operation_ids):
            if 0 < operation_id <= known:
                receipt.already_known += 1
            else:
                receipt.refusals.append(Refusal(place, reason.code, reason.field, reason.message))
        self.archive.registered(session, run.kind, run.batch, receipt, self.time.now_ms())
        self.archive.finish()

    async def _keep_sessions(self) -> None:
        """Heartbeats, silent peers, and the ends of sessions. Survives whatever a turn raises."""
        interval_ms = self.limits.heartbeat_interval_ms
        turn_s = min(interval_ms / 4, 1_000) / 1_000
        while True:
            await asyncio.sleep(turn_s)
            try:
                now_ms = self.time.now_ms()
                for connection in self.sessions.connections():
                    connection.check(now_ms, interval_ms)
                self.sessions.drop_expired(now_ms)
                self.deliver()
                self.journal.tick()
            except Exception:
                LOGGER.exception("looking after the sessions failed; it goes on")


class Waiting:
    """A unary wait: gives its operation id and the future of its result. Leaving cancels what is still pending."""

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._operation_id = 0

    def __enter__(self) -> tuple[int, asyncio.Future[ResultSlice]]:
        self._operation_id, future = self._host.waits.add()
        return self._operation_id, future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._host.waits.remove(self._operation_id):
            self._host.cancel_wait(self._operation_id)


def _placed(run: OperationRun, refusal: Refusal) -> Refusal:
    """The engine's refusal with the place in the caller's batch."""
    return Refusal(run.index_of(refusal.index), refusal.code, refusal.field, refusal.message)


def _without_repeated(
    refused: list[tuple[Refusal, int, int]], runs: Sequence[OperationRun]
) -> list[tuple[Refusal, int, int]]:
    """Without those whose id came earlier in the same batch: an id has one result, and that is the first one's."""
    first_index: dict[int, int] = {operation_id: refusal.index for refusal, operation_id, _ in reversed(refused)}
    for run in runs:
        for place, operation_id in enumerate(run.batch.operation_ids):
            index = run.index_of(place)
            if index < first_index.get(operation_id, -1):
                first_index[operation_id] = index
    return [entry for entry in refused if first_index[entry[1]] == entry[0].index]


def _all_refused(run: OperationRun, reason: Refusal) -> list[tuple[Refusal, int, int]]:
    return [
        (Refusal(run.index_of(place), reason.code, reason.field, reason.message), operation_id, run.kind)
        for place, operation_id in enumerate(run.batch.operation_ids)
    ]


def _join(whole: EventsReceipt, part: EventsReceipt) -> None:
    whole.next_index = part.next_index
    whole.ended.extend(part.ended)
    whole.unchanged += part.unchanged
    whole.refusals.extend(part.refusals)
