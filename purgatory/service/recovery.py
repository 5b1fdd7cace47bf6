"""Opening of a journal: its contents are restored into a host, whose changes it records from then on.

Operations are restored in slices, and the event loop runs between them, so that the daemon answers probes (not ready).
The order matters: partitions and keys, then sessions with their results, then the operations, which refer to both.
"""

import asyncio
import logging
import sqlite3
import time
from pathlib import Path
from typing import Final, NoReturn, Protocol

from purgatory.engine.batches import Refusal
from purgatory.engine.snapshot.live_set import LiveSet
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.journal.continued_time import ReadClocks, journal_now_ms, read_clocks
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.group import Moment, SessionState
from purgatory.journal.row_codec import unpack_changes, unpack_results
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.store import Store
from purgatory.journal.thread import JournalThread
from purgatory.service.host import Host
from purgatory.service.listeners.durable_journal import DurableJournal
from purgatory.service.sessions.refused import RefusedIds, RefusedOperation, refused_completions
from purgatory.service.sessions.session import Callback, Session
from purgatory.service.translate.result_slices import slices_of

LOGGER: Final = logging.getLogger(__name__)

SLICE_S: Final = 0.005
REPORT_S: Final = 1.0


class Takeover(Protocol):
    """What a daemon that leads by a replicated log has, and one with a plain journal has not.

    Attributes:
        confirmed_ms: See `DurableJournal`.
    """

    confirmed_ms: int

    def open_store(self, directory: Directory, crash: CrashPoints) -> Store:
        """Return a store whose `commit` also appends to the log. Raises `JournalError`."""

    def cannot_serve(self, error: JournalError) -> NoReturn:
        """Let another daemon take over, and end the process. Called with all files closed."""

    def passed_ms(self, last: Moment) -> int:
        """Return the time since the last group, milliseconds; never more than has really passed."""


class OpenJournal:
    """A journal whose folder is locked and whose file has been verified. Its host is restored later."""

    def __init__(
        self, folder: Path, *, is_sync: bool, clocks: ReadClocks = read_clocks, takeover: Takeover | None = None
    ) -> None:
        """Raises `JournalError`."""
        self._confirmed_ms: Final = None if takeover is None else takeover.confirmed_ms
        self._read_clocks: Final = clocks
        self._is_sync: Final = is_sync
        self._crash: Final = CrashPoints.from_environment()
        self._directory: Final = Directory(folder)
        try:
            open_store = Store if takeover is None else takeover.open_store
            self._store: Final = open_store(self._directory, self._crash)
            self._store.verify()
            self._last: Final = self._store.moment()
        except BaseException:
            # The lock outlives this object otherwise, and a second attempt in this process would find the folder in
            # use.
            self._directory.release()
            raise
        self.is_continued: Final = self._last is not None
        """Whether the journal existed before."""
        self.to_restore: Final = self._store.count("registrations")
        """Number of rows of registrations."""
        self._journal: DurableJournal | None = None
        """Set once everything is restored."""
        self._sessions: Final[dict[int, Session]] = {}
        self._builder: Final = StatementBuilder()
        last = self._last[0] if self._last else None
        # Last, because the engine's clock starts from here: time that is spent in between would be missing in it.
        self.start_ms: Final = (
            journal_now_ms(last, clocks())
            if takeover is None or last is None
            else last.engine_ms + takeover.passed_ms(last)
        )
        """Engine time at start, milliseconds."""

    async def restore(self, host: Host) -> None:
        """Restore a new host and record its changes from then on.

        Raises:
            JournalError: The journal is damaged. Only `close` may be called afterwards.
        """
        began_s = time.monotonic()
        number = self._last[1] if self._last else 0
        journal = DurableJournal(
            host.engine,
            host.time,
            host.sessions.of_owner,
            self._read_clocks,
            host.holds.of("journal"),
            is_sync=self._is_sync,
            confirmed_ms=self._confirmed_ms,
            number=number,
        )
        # Before anything is restored: overdue operations end during the restore, and their results must be recorded.
        host.use_journal(journal)
        try:
            self._restore_marks(host)
            self._restore_sessions(host)
            await self._restore_operations(host, journal)
        except (LookupError, ValueError, sqlite3.Error) as error:
            raise damaged(self._directory.path, f"a row cannot be read ({error})") from error
        for session in self._sessions.values():
            # Once, at the end: rows of operations that were moved come after rows with higher ids.
            session.owner.put_in_order()
        if self._last is not None:
            LOGGER.info(
                "journal: restored %d operations, %d sessions, %d unacknowledged results; the last daemon %s; %.1f s",
                host.engine.pending,
                host.sessions.count,
                host.sessions.unacknowledged_results,
                "shut down cleanly" if self._last[2] else "did not shut down cleanly",
                time.monotonic() - began_s,
            )
        journal.start(JournalThread(self._store, self._builder, journal.report, self._crash), self._builder)
        self._journal = journal

    def _restore_marks(self, host: Host) -> None:
        snapshots = host.engine.snapshots
        # Merged before any is restored: `restore_partition` creates a partition and cannot replace one.
        partitions = {(topic, number): content for _, topic, number, content in self._store.rows("partitions")}
        # Rows of changes are newer than those of `partitions`, and a later one overrides an earlier one.
        for row, content in self._store.rows("changes"):
            changes = unpack_changes(content)
            partitions.update(changes)
            self._builder.add_existing_changes(row, changes)
        for name, content in partitions.items():
            if content:
                snapshots.restore_partition(name, content)
        for saved in self._store.signal_keys():
            self._builder.add_existing_key(saved)
            key, count, value, failed, principal = saved
            snapshots.restore_key(key, count, value, failed, host.shares.accounts.of(principal).usage)

    def _restore_sessions(self, host: Host) -> None:
        states = [SessionState(*row) for row in self._store.rows("sessions")]
        for state in states:
            self._sessions[state.session] = self._restore_session(host, state)
        for number, ranges in self._store.rows("refused_ids"):
            self._sessions[number].refused_ids = RefusedIds(ranges)
            self._builder.add_existing_refused_ids(number, ranges)
        # Before the operations: one that ends while it is restored gets a sequence number above all stored results.
        with_results = self._restore_results()
        for state in states:
            session = self._sessions[state.session]
            if state.session not in with_results:
                session.outbox.start_at(state.last_sequence + session.sequence_shift)
            # A row is deleted once all of its results are acknowledged, so its first results may be acknowledged
            # already.
            session.outbox.acknowledge(state.acknowledged_sequence + session.sequence_shift)
            if state.uncertain_after >= 0:
                # Results above may be renumbered. They are sent once it is durable that the client has resumed.
                session.outbox.hold_above(session.uncertain_after)

    def _restore_session(self, host: Host, state: SessionState) -> Session:
        session = host.sessions.restore(state.session_id, state.session, host.time.now_ms(), state.principal)
        session.owner.highest_operation_id = state.highest_operation_id
        # Otherwise the first group would write all restored operations again, as if they had just been registered.
        session.journaled_operation_id = state.highest_operation_id
        session.sequence_shift = state.sequence_shift
        session.is_journaled = True
        session.incarnation = state.incarnation
        if state.callback_url:
            session.callback = Callback(state.callback_url, state.callback_token)
        if state.uncertain_after >= 0:
            # The client has not resumed since an earlier crash. No result since then was delivered, so the number
            # from that crash stays valid, however many daemons have run in between.
            session.uncertain_after = state.uncertain_after + state.sequence_shift
        elif self._last is not None and not self._last[2]:
            # After a crash: results delivered after the last group are lost here.
            session.uncertain_after = state.last_sequence + state.sequence_shift
        return session

    def _restore_results(self) -> set[int]:
        """Fill the outboxes. Return the numbers of the sessions with results."""
        started: set[int] = set()
        for row, number, first, count, content in self._store.rows("results"):
            session = self._sessions[number]
            # Rows are read in order: the first one of a session states at which number the results begin that are left
            # of it.
            if number not in started:
                started.add(number)
                session.outbox.start_at(first - 1 + session.sequence_shift)
            for part in unpack_results(content, session.owner.owner_id):
                if isinstance(part, list):
                    refused = [
                        RefusedOperation(Refusal(0, code, field, message), operation_id, kind)
                        for code, field, message, operation_id, kind in part
                    ]
                    refusals = [entry.refusal for entry in refused]
                    session.outbox.append(slices_of(refused_completions(refused), refusals))
                else:
                    session.outbox.append(slices_of(part))
            self._builder.add_existing_results(number, row, first + count - 1)
        return started

    async def _restore_operations(self, host: Host, journal: DurableJournal) -> None:
        paused_s = reported_s = time.monotonic()
        # All of it at once: a bit for each operation, where the rows themselves have to be read one by one.
        gone_bits: dict[int, bytes] = dict(self._store.rows("gone"))
        for rows, (row, number, _, _, _, content) in enumerate(self._store.rows("registrations"), 1):
            session, gone = self._sessions[number], gone_bits.get(row, b"")
            saved = SavedOperations.from_bytes(content)
            self._builder.add_existing_registration(number, row, LiveSet(saved.operation_ids, gone))
            journal.recovered += host.restore(session, saved, gone)
            now_s = time.monotonic()
            if now_s - paused_s >= SLICE_S:
                await asyncio.sleep(0)
                paused_s = time.monotonic()
            if now_s - reported_s >= REPORT_S:
                reported_s = now_s
                LOGGER.info("journal: %d operations restored, %d of %d rows", journal.recovered, rows, self.to_restore)

    def dead_letters(self) -> list[tuple[int, bytes]]:
        """Undelivered results, by number. Call this before `restore`.

        Raises:
            JournalError: The journal is damaged.
        """
        return [(letter, content) for letter, content in self._store.rows("dead_letters")]

    async def commit_receipted(self) -> None:
        """See `DurableJournal.commit_receipted`."""
        if self._journal is not None:
            await self._journal.commit_receipted()

    async def close(self, timeout_s: float) -> bool:
        """Commit the last changes and end. Return False if that failed. A journal that was not completely restored is
        left unchanged.
        """
        try:
            if self._journal is not None:
                return await self._journal.finish(timeout_s)
            self._store.close()
            return True
        finally:
            self._directory.release()
