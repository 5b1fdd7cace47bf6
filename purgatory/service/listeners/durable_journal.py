"""The journal on the event loop: collects changes, seals a group when the thread is free, releases answers.

One group is committed at a time, and further changes are collected for the next one: the slower the disk, the larger
the groups. A group is sealed between two engine calls. Only then are waits and marks read from the engine, so for a
wait that begins and ends within one group only the result is written.

Sync: results and answers are held until their group is durable. Async: they are sent at once, unless too many answered
changes are not yet durable. While the disk fails, results and receipts are held, and calls end with an error.

If a hook raises, what has been collected may lack a change. The journal then closes until the daemon is restarted: it
seals no further group, holds all results and answers, and refuses new work. So nothing is acknowledged that is not on
disk, and the file stays at a state that existed.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Final

from prometheus_client.core import Metric

from purgatory import sizes
from purgatory.clock import EngineTime
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, Refusal
from purgatory.engine.calls import Apply, Extend, Register
from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.journal.continued_time import ReadClocks
from purgatory.journal.group import Group, Moment, RefusedRows, SessionChanges, SessionState, WriteFailure
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.thread import JournalThread
from purgatory.service.errors import perhaps_processed
from purgatory.service.histogram import Histogram
from purgatory.service.listeners.journal_changes import Generation, PendingChanges
from purgatory.service.listeners.journal_metrics import SYNC_BOUNDS_MS, JournalStatistics, journal_metrics
from purgatory.service.listeners.listener import ASYNC, SYNC, Called, Completed, Journal
from purgatory.service.loop_stalls import StallTimer
from purgatory.service.sessions.refused import RefusedOperation
from purgatory.service.sessions.session import Session

LOGGER: Final = logging.getLogger(__name__)

ASYNC_PAUSE_S: Final = 0.02
"""In async mode: minimum time from one group to the next. No answer waits for it, and larger groups cost less for each
change; a wait that ends within one is never written. A crash loses the changes of this time, too.
"""

CHANGE_BYTES: Final = 100
"""Estimated memory of a change that is collected for the next group."""

TICK_MS: Final = 10_000
POLL_AT_END_S: Final = 0.005


class DurableJournal(Journal):
    """Records all changes on disk. Use it on one event loop only."""

    keeps = True

    def __init__(
        self,
        engine: Engine,
        time: EngineTime,
        session_of: Callable[[int], Session | None],
        read_clocks: ReadClocks,
        sealing: StallTimer,
        *,
        is_sync: bool,
        confirmed_ms: int | None,
        number: int,
    ) -> None:
        """Args:
        session_of: Returns the session of an engine owner.
        confirmed_ms: With a replicated log: time after the start of a commit during which no other daemon can have
            taken over, and reads are answered without another commit. None: there is no other daemon.
        number: Number of the last group in the journal.
        """
        # Before anything is restored or registered: progress and forgotten keys are recorded only from here on.
        engine.snapshots.note_changes()
        self._engine: Final = engine
        self._session_of: Final = session_of
        self._time: Final = time
        self._read_clocks: Final = read_clocks
        self._sealing: Final = sealing
        self._is_sync: Final = is_sync
        self._confirmed_ms: Final = confirmed_ms
        self._pause_s: Final = 0.0 if is_sync else ASYNC_PAUSE_S
        self.durability = SYNC if is_sync else ASYNC
        self._group_number = number
        self._first_group_number: Final = number
        self.recovered = 0
        """Operations restored from the journal."""
        self._thread: JournalThread | None = None
        self._builder: StatementBuilder | None = None
        self._loop: Final = asyncio.get_running_loop()
        self._failure: WriteFailure | None = None
        self._calls: Final[set[asyncio.Future[None]]] = set()
        """Those in `durable`."""
        self._is_broken = False
        """Whether a change may be missing from those that were collected. Stays set: only a restart helps."""
        self._collected = Generation()
        """For the next group."""
        self._committing: Final[deque[Generation]] = deque()
        """On the way to the disk; two only at the end."""
        self._sealed_ms = time.now_ms()
        self._submitted_s = 0.0
        """Time at which the last group was sealed, on the loop's clock, seconds."""
        self._confirmed_boot_ms = 0
        """Time at which the last durable group was sealed. Not on the loop's clock, which stands still while the
        machine is suspended and another daemon takes over.
        """
        self._syncs: Final = Histogram(SYNC_BOUNDS_MS)
        self._is_scheduled = False

    def start(self, thread: JournalThread, builder: StatementBuilder) -> None:
        self._thread, self._builder = thread, builder
        thread.start()
        # Changes during the restore were collected, but could not be committed without a thread.
        self._schedule_commit()

    # Hooks.

    def why_closed(self) -> Refusal | None:
        failure = self._failure
        if failure is None:
            return None
        return Refusal(0, codes.RESOURCE_EXHAUSTED if failure.is_full else codes.UNAVAILABLE, "", failure.reason)

    def held_bytes(self) -> int:
        """Estimated memory of the changes collected for the next group. Results are counted by their outbox."""
        return self._collected.change_count * CHANGE_BYTES

    def metrics(self) -> Iterable[Metric]:
        oldest = self._committing[0] if self._committing else self._collected
        lag_s = 0.0 if oldest.since_s is None else self._loop.time() - oldest.since_s
        is_closed = self._failure is not None
        return journal_metrics(self.statistics(), is_closed=is_closed, lag_s=lag_s, syncs=self._syncs)

    def statistics(self) -> JournalStatistics:
        thread, builder = self._thread, self._builder
        if thread is None or builder is None:
            return JournalStatistics(0, 0, 0, 0, 0, self.recovered)
        groups = self._group_number - self._first_group_number
        return JournalStatistics(
            groups, thread.errors, thread.bytes, builder.registrations, builder.results, self.recovered
        )

    def called(self, event: Called) -> None:
        """Collect what may have changed apart from results. Unary waits are not recorded: they end with their call."""
        call, session = event.call, event.session
        if isinstance(call, Apply):
            self._applied(call, event.receipt.next_index)
        elif session is None:
            return
        elif isinstance(call, Register):
            self.changed(session)
        elif isinstance(call, Extend) and any(event.receipt.were_pending):
            # Deadlines have changed: the rows of these operations are written again.
            extended = list(compress(call.operation_ids, event.receipt.were_pending))
            self._changes_of(session).progressed.update(extended)
            self._collected.change_count += len(extended)
            self._schedule_commit()

    def changed(self, session: Session) -> None:
        # A session in which nothing was registered is not written: its client loses nothing if a crash forgets it, and
        # opening sessions causes no commits.
        if not session.is_blank:
            self._changes_of(session)
            self._schedule_commit()

    def acknowledged(self, session: Session) -> None:
        """Results were acknowledged. No answer waits for it, so it causes no group; the next group includes it."""
        if not session.is_blank:
            self._changes_of(session)

    def completed(self, event: Completed) -> None:
        if event.session is not None:
            # The object itself and not a copy: the outbox appends the same one later, and neither of them changes it.
            self._add_results(event.session, event.completions, len(event.completions))

    def refused_in_session(self, session: Session, refused: Sequence[RefusedOperation]) -> None:
        plain = [(refusal.code, refusal.field, refusal.message, number, kind) for refusal, number, kind in refused]
        self._add_results(session, plain, len(plain))

    def dead_letter_changed(self, letter: int, content: bytes) -> None:
        self._collected.dead_letters[letter] = content
        self._schedule_commit()

    def session_dropped(self, session: Session) -> None:
        # Any other session has left no trace on disk.
        if session.is_journaled or session in self._collected.sessions:
            self._changes_of(session).dropped = True
            self._schedule_commit()

    def _applied(self, call: Apply, stop: int) -> None:
        """Events were applied: the partitions and keys that they name may have changed, and operations progressed."""
        batch, start = call.batch, call.start
        # A column of one value holds for all events and must not be sliced; an empty one means index 0 for each of
        # them.
        places = batch.item_indexes[start:stop] or [0]
        if len(batch.item_indexes) == 1:
            places = batch.item_indexes
        types = batch.types[start:stop]
        if codes.KEY_SIGNALLED not in types:
            names = batch.partitions
            self._collected.partitions.update((names[place], None) for place in set(places) if 0 <= place < len(names))
        else:
            self._add_mixed(batch, types, places)
        # Taken after each call and not when the group is sealed: progress is recorded by slot, and a slot that becomes
        # free belongs to another operation later.
        for owner_id, operation_id in self._engine.snapshots.take_progressed():
            session = self._session_of(owner_id)
            if session is not None and not session.dropped:
                self._changes_of(session).progressed.add(operation_id)
        self._collected.change_count += stop - start
        self._schedule_commit()

    def _add_mixed(self, batch: EventBatch, types: list[int], places: list[int]) -> None:
        if len(places) == 1:
            places *= len(types)
        for kind, place in zip(types, places, strict=True):
            if kind == codes.KEY_SIGNALLED:
                if 0 <= place < len(batch.keys):
                    self._collected.keys[batch.keys[place]] = None
            elif 0 <= place < len(batch.partitions):
                self._collected.partitions[batch.partitions[place]] = None

    def when_durable(self, answer: Callable[[], None]) -> None:
        if not self._must_hold():
            answer()
        # Checked first: the change may not be part of the group that is being committed.
        elif self._has_changed:
            self._collected.answers.append(answer)
        elif self._committing:
            self._committing[-1].answers.append(answer)
        elif self.is_confirmed:
            answer()
        else:
            self.heartbeat()
            self._collected.answers.append(answer)

    async def durable(self) -> None:
        reached = self._when_reached()
        self._calls.add(reached)
        reached.add_done_callback(self._calls.discard)
        self._end_calls()
        await reached

    def _when_reached(self) -> asyncio.Future[None]:
        """A future that is done once all previous changes are durable."""
        reached: asyncio.Future[None] = self._loop.create_future()
        self.when_durable(lambda: None if reached.done() else reached.set_result(None))
        return reached

    def _end_calls(self) -> None:
        """While the disk fails: end the calls that wait. Their changes stay in the group, which is repeated."""
        if self._failure is None:
            return
        for reached in self._calls:
            if not reached.done():
                reached.set_exception(perhaps_processed(self._failure.reason))

    @property
    def is_confirmed(self) -> bool:
        confirmed_ms = self._confirmed_ms
        return confirmed_ms is None or self._read_clocks().boot_ms - self._confirmed_boot_ms < confirmed_ms

    async def confirmed(self) -> None:
        if self._confirmed_ms is not None:
            # The next group, not the one being committed: that one may have been appended before this call arrived.
            self.heartbeat()
            await self._when_reached()

    def heartbeat(self) -> None:
        self._schedule_commit()

    def hook_failed(self, error: Exception) -> None:
        """Close the journal: see the module."""
        # An unsealed change, for good: no answer may take the present state for durable.
        self._is_broken = True
        self._note_change()
        self._on_report(WriteFailure(is_full=False, reason=f"the journal has failed ({error!r}): restart the daemon"))

    def tick(self) -> None:
        """Commit changes that no answer waits for. While operations are pending, record the time every `TICK_MS`."""
        # A recent pair of engine time and wall clock on disk: if the wall clock is set while the daemon runs, only the
        # time since the last group can be wrong after a reboot.
        if self._collected.sessions or (self._engine.pending and self._time.now_ms() - self._sealed_ms >= TICK_MS):
            self._schedule_commit()

    # The end.

    async def finish(self, timeout_s: float) -> bool:
        """Commit everything and end. Return False if that failed."""
        assert self._thread is not None, "the journal was never started"
        deadline_s = self._loop.time() + timeout_s
        await self._wait_committed(timeout_s)
        thread, self._thread = self._thread, None  # nothing may follow the last group, not even a heartbeat
        if not self._is_broken:
            last = self._seal()
            # If changes are missing on disk, the shutdown must not count as clean: the next daemon has to expect that
            # clients have results which it does not know.
            last.is_last = not self._failure
            thread.submit(last)
        left_s = max(0.0, deadline_s - self._loop.time())
        # On a thread: the loop has to stay free for the reports of the last groups.
        return await asyncio.to_thread(thread.close, left_s) and not self._failure

    async def commit_receipted(self) -> None:
        """Wait until everything that was answered is on disk or the disk has failed. In sync mode that is always so."""
        if not self._is_sync:
            await self._wait_committed()

    # Inside.

    async def _wait_committed(self, timeout_s: float = math.inf) -> None:
        deadline_s = self._loop.time() + timeout_s
        # Polled: this happens once in the life of a daemon.
        while self._failure is None and self._loop.time() < deadline_s:
            if not (self._committing or self._has_changed):
                return
            await asyncio.sleep(POLL_AT_END_S)

    def _must_hold(self) -> bool:
        return self._is_sync or self._is_broken or self._collected.change_count > sizes.ASYNC_CHANGES_MAX

    def _changes_of(self, session: Session) -> PendingChanges:
        sessions = self._collected.sessions
        changes = sessions.get(session)
        if changes is None:
            changes = sessions[session] = PendingChanges(session)
        return changes

    def _add_results(self, session: Session, results: Completions | RefusedRows, count: int) -> None:
        self._collected.change_count += count
        # Before the results are appended, because `hold` stops at the newest result of the outbox at this time; and
        # before anything here can raise, because results that are not recorded must not be sent.
        if self._must_hold():
            session.outbox.hold()
        else:
            # This also lifts a hold of earlier results that are not durable yet, after an overload for example. Async
            # mode promises no more than that results may be delivered again.
            session.outbox.release_all()
        changes = self._changes_of(session)
        changes.results.append(results)
        changes.count += count
        self._schedule_commit()

    @property
    def _has_changed(self) -> bool:
        return self._collected.since_s is not None

    def _note_change(self) -> None:
        if self._collected.since_s is None:
            self._collected.since_s = self._loop.time()

    def _schedule_commit(self) -> None:
        """Seal a group after the current callback, or when the group being committed is durable; in async mode, not
        before the pause is over.
        """
        self._note_change()
        if not self._committing and not self._is_scheduled and self._thread is not None:
            self._is_scheduled = True
            # Not at once: a batch that is registered, and what it completes, belong in one group.
            self._loop.call_at(self._submitted_s + self._pause_s, self._commit)

    def _commit(self) -> None:
        self._is_scheduled = False
        if self._committing or not self._has_changed or self._thread is None or self._is_broken:
            return
        try:
            with self._sealing:
                group = self._seal()
        except Exception as error:
            LOGGER.exception("a group of the journal cannot be sealed")
            self.hook_failed(error)
            return
        self._thread.submit(group)

    def _seal(self) -> Group:
        """A group of all changes since the last one, with the current state.

        It runs without an await, between two engine calls. Otherwise marks, results and waits of the group could belong
        to different moments, and a crash would restore a state that never existed.
        """
        self._group_number += 1
        # In this order: with a pause in between, waits expire later after a restart, instead of too early.
        engine_ms, reading = self._time.now_ms(), self._read_clocks()
        moment = Moment(engine_ms, reading.wall_ms, reading.boot_ms, reading.boot_id)
        self._sealed_ms = moment.engine_ms
        group = Group(self._group_number, moment)
        collected, snapshots = self._collected, self._engine.snapshots
        for session, changes in collected.sessions.items():
            group.sessions.append(self._seal_session(session, changes))
        group.partitions.extend((name, snapshots.save_partition(name)) for name in collected.partitions)
        # A forgotten key may have been signalled again since, so its count is read like that of any other key.
        collected.keys.update(dict.fromkeys(snapshots.take_forgotten_keys()))
        group.keys.extend(snapshots.save_key(key) for key in collected.keys)
        group.dead_letters.extend(collected.dead_letters.items())
        # Changes of the group that is being committed no longer count, so in async mode up to twice ASYNC_CHANGES_MAX
        # may not be durable.
        self._collected = Generation()
        self._committing.append(collected)
        self._submitted_s = self._loop.time()
        return group

    def _seal_session(self, session: Session, changes: PendingChanges) -> SessionChanges:
        outbox = session.outbox
        shift = session.sequence_shift
        highest = int(session.owner.highest_operation_id)
        last, acknowledged = outbox.last_sequence - shift, outbox.acknowledged_sequence - shift
        uncertain_after = session.uncertain_after - shift if session.uncertain_after >= 0 else -1
        # Numbers on disk are without the shift: a later shift must not require rewriting rows of results.
        state = SessionState(
            session.number, session.session_id, highest, last, acknowledged, shift, uncertain_after,
            session.incarnation, session.account.principal, *(session.callback or ("", "")),
        )  # fmt: skip
        # The results of a group are the newest ones of the outbox, so their numbers follow from their count.
        sealed = SessionChanges(state, last - changes.count + 1)
        sealed.dropped = changes.dropped
        # Before the engine is asked for operations of the owner, which may have been removed already.
        if changes.dropped:
            return sealed
        sealed.refused_ids = session.refused_ids.to_bytes()
        sealed.results.extend(changes.results)
        # By id and not by what was registered: an operation that has ended since then is not pending, and costs nothing
        # on disk.
        sealed.registered = self._engine.snapshots.save_above(session.owner, changes.known)
        # Operations registered since the last group are in `registered` already, with their progress.
        progressed = sorted(number for number in changes.progressed if number <= changes.known)
        if progressed:
            sealed.progressed = self._engine.snapshots.save_some(session.owner, progressed)
        # Now, although the group is not durable yet: groups are written in order, so a later one is never on disk
        # without this one.
        session.journaled_operation_id = highest
        session.is_journaled = True
        # After a crash, results are sent once it is durable that the client has resumed the session.
        if session.uncertain_after < 0:
            self._collected.releases.append((session, state.last_sequence))
        return sealed

    # Reports of the thread.

    def report(self, report: Group | WriteFailure) -> None:
        """Called in the journal's thread when a group is durable or the disk fails."""
        try:
            self._loop.call_soon_threadsafe(self._on_report, report)
        except RuntimeError:
            LOGGER.debug("the event loop ended before the journal")

    def _on_report(self, report: Group | WriteFailure) -> None:
        if isinstance(report, WriteFailure):
            if self._failure is None:
                LOGGER.error("%s; registrations and events are refused until it can be written", report.reason)
            self._failure = report
            self._end_calls()
            return
        # A group was written, so the disk works again. Nothing is lost: the thread has repeated the same group until
        # now.
        if self._failure is not None and not self._is_broken:
            LOGGER.warning("the journal can be written again")
            self._failure = None
        self._syncs.observe((self._loop.time() - self._submitted_s) * 1_000)
        self._confirmed_boot_ms = report.moment.boot_ms
        # Taken before the first answer, which may make changes and wait for the next group.
        durable = self._committing.popleft()
        for answer in durable.answers:
            try:
                answer()
            except Exception:  # the others are in no queue any more
                LOGGER.exception("a change is durable, and its answer failed")
        for session, sequence in durable.releases:
            # The number is in the journal's numbering, because the shift may have changed since the group was sealed.
            session.outbox.release(sequence + session.sequence_shift)
            session.wake()
        if self._has_changed and self._is_sync:
            self._commit()
        elif self._has_changed:
            self._schedule_commit()
