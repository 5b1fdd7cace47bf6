"""The journal on the event loop: gathers what has changed, seals a group when the thread is free, lets answers go.

One group is under way at a time. What happens meanwhile gathers for the next one, so the slower the disk, the larger
the groups. A group is sealed between two engine calls: what of a session waits, what a partition has come to, is taken
from the engine then, so what began and ended within one group costs nothing but its result.

Sync: results and answers go when their group is durable. Async: they go at once, unless too much is not durable yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, EventsReceipt, PartitionName, Refusal
from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.journal.continued_time import ReadClocks
from purgatory.journal.group import Closed, Group, Moment, Refused, SessionPart, SessionState
from purgatory.journal.statements import Bookkeeper
from purgatory.journal.thread import JournalThread
from purgatory.service.engine_time import EngineTime
from purgatory.service.listeners.journal import ASYNC, SYNC, JournalStatistics
from purgatory.service.sessions.session import Session

LOGGER: Final = logging.getLogger(__name__)

ASYNC_CHANGES_MAX: Final = 100_000
"""In async mode: results and events that may be answered and not be durable; beyond, answers wait as in sync mode."""

TICK_MS: Final = 10_000
POLL_AT_END_S: Final = 0.005


class _Gathered:
    """What has changed in a session since the last group was sealed."""

    def __init__(self, session: Session) -> None:
        self.known: Final = session.journaled_operation_id
        self.results: Final[list[Completions | Refused]] = []
        self.count = 0
        self.progressed: Final[set[int]] = set()
        self.dropped = False


class JournalKeeping:
    """A `Journal` that keeps everything. To be used on one event loop."""

    def __init__(
        self,
        engine: Engine,
        time: EngineTime,
        session_of: Callable[[int], Session | None],
        read_clocks: ReadClocks,
        *,
        is_sync: bool,
        number: int,
    ) -> None:
        """`session_of` finds an owner's session; `number` is that of the last group that the journal knows."""
        engine.saving.note_changes()
        self._engine: Final = engine
        self._session_of: Final = session_of
        self._time: Final = time
        self._read_clocks: Final = read_clocks
        self._is_sync: Final = is_sync
        self._number = number
        self._first_number: Final = number
        self.recovered = 0
        """Operations of the daemon before that wait again, so far."""
        self._thread: JournalThread | None = None
        self._books: Bookkeeper | None = None
        self._loop: Final = asyncio.get_running_loop()
        self._closed: Closed | None = None
        self._sessions: dict[Session, _Gathered] = {}
        self._partitions: dict[PartitionName, None] = {}
        self._keys: dict[str, None] = {}
        self._answers: list[Callable[[], None]] = []
        self._changes = 0
        self._changed = False
        self._sealed_ms = time.now_ms()
        self._under_way: Group | None = None
        self._going: list[Callable[[], None]] = []
        """Answers that wait for the group under way."""
        self._releasing: list[tuple[Session, int]] = []
        """Sessions whose results, up to a sequence number of the journal, wait for it."""
        self._is_called = False

    def start(self, thread: JournalThread, books: Bookkeeper) -> None:
        """From now on what has changed is kept."""
        self._thread, self._books = thread, books
        thread.start()
        self._stir()

    # Told by the host.

    @property
    def durability(self) -> int:
        """As set."""
        return SYNC if self._is_sync else ASYNC

    @property
    def keeps(self) -> bool:
        """Yes."""
        return True

    def why_closed(self) -> Refusal | None:
        """While the disk fails."""
        closed = self._closed
        if closed is None:
            return None
        return Refusal(0, codes.RESOURCE_EXHAUSTED if closed.is_full else codes.UNAVAILABLE, "", closed.reason)

    def statistics(self) -> JournalStatistics | None:
        """How it fares."""
        thread, books = self._thread, self._books
        if thread is None or books is None:
            return JournalStatistics(0, 0, 0, 0, 0, self.recovered)
        groups = self._number - self._first_number
        return JournalStatistics(
            groups, thread.errors, thread.bytes, books.registrations, books.results, self.recovered
        )

    def changed(self, session: Session) -> None:
        """Operations were registered in a session, or it was opened."""
        if not session.is_blank:
            self._of(session)
            self._stir()

    def acknowledged(self, session: Session) -> None:
        """Results were acknowledged: that goes with the next group, for a commit of its own would only keep the disk
        from what somebody waits for.
        """
        if not session.is_blank:
            self._of(session)

    def ended(self, session: Session, completions: Completions) -> None:
        """Operations of a session have ended. To be told before they get their sequence numbers."""
        gathered = self._of(session)
        gathered.results.append(completions)
        self._add_results(session, gathered, len(completions))

    def refused(self, session: Session, refused: Sequence[tuple[Refusal, int, int]]) -> None:
        """Registrations were refused. To be told before their results get their sequence numbers."""
        gathered = self._of(session)
        plain = [(refusal.code, refusal.field, refusal.message, number, kind) for refusal, number, kind in refused]
        gathered.results.append(plain)
        self._add_results(session, gathered, len(plain))

    def dropped(self, session: Session) -> None:
        """A session is gone."""
        if session.is_journaled or session in self._sessions:
            self._of(session).dropped = True
            self._stir()

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """Events were applied: what they name may have changed, and operations may have come a step further."""
        stop = receipt.next_index
        places = batch.item_indexes[start:stop] or [0]
        if len(batch.item_indexes) == 1:
            places = batch.item_indexes
        types = batch.types[start:stop]
        if codes.KEY_SIGNALLED not in types:
            names = batch.partitions
            self._partitions.update((names[place], None) for place in set(places) if 0 <= place < len(names))
        else:
            self._note_mixed(batch, types, places)
        for owner_id, operation_id in self._engine.saving.take_progressed():
            session = self._session_of(owner_id)
            if session is not None:
                self._of(session).progressed.add(operation_id)
        self._changes += stop - start
        self._stir()

    def _note_mixed(self, batch: EventBatch, types: list[int], places: list[int]) -> None:
        if len(places) == 1:
            places *= len(types)
        for kind, place in zip(types, places, strict=True):
            if kind == codes.KEY_SIGNALLED:
                if 0 <= place < len(batch.keys):
                    self._keys[batch.keys[place]] = None
            elif 0 <= place < len(batch.partitions):
                self._partitions[batch.partitions[place]] = None

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Calls it once all that was told so far is durable."""
        if not self._holds():
            answer()
        elif self._changed:
            self._answers.append(answer)
        elif self._under_way is not None:
            self._going.append(answer)
        else:
            answer()

    async def durable(self) -> None:
        """Returns once all that was told so far is durable."""
        if not self._holds() or not (self._changed or self._under_way is not None):
            return
        reached: asyncio.Future[None] = self._loop.create_future()
        self.when_durable(lambda: None if reached.done() else reached.set_result(None))
        await reached

    def tick(self) -> None:
        """What nobody waits for has waited long enough; and while something waits, the journal hears now and then what
        time it is.
        """
        if self._sessions or (self._engine.pending and self._time.now_ms() - self._sealed_ms >= TICK_MS):
            self._stir()

    # The end.

    async def finish(self, timeout_s: float) -> bool:
        """Keeps all that is left and ends; False: it could not."""
        assert self._thread is not None, "the journal was never started"
        deadline_s = self._loop.time() + timeout_s
        while self._must_go_on() and self._loop.time() < deadline_s:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(POLL_AT_END_S)
        last = self._seal()
        last.is_last = not self._closed
        self._thread.submit(last)
        left_s = max(0.0, deadline_s - self._loop.time())
        return await asyncio.to_thread(self._thread.close, left_s) and not self._closed

    # Inside.

    def _must_go_on(self) -> bool:
        return (self._under_way is not None or self._changed) and self._closed is None

    def _holds(self) -> bool:
        return self._is_sync or self._changes > ASYNC_CHANGES_MAX

    def _of(self, session: Session) -> _Gathered:
        gathered = self._sessions.get(session)
        if gathered is None:
            gathered = self._sessions[session] = _Gathered(session)
        return gathered

    def _add_results(self, session: Session, gathered: _Gathered, count: int) -> None:
        gathered.count += count
        self._changes += count
        if self._holds():
            session.outbox.hold()
        else:
            session.outbox.release_all()
        self._stir()

    def _stir(self) -> None:
        """Something has changed: a group is sealed as soon as the present callback is over, if none is under way."""
        self._changed = True
        if self._under_way is None and not self._is_called and self._thread is not None:
            self._is_called = True
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        self._is_called = False
        if self._under_way is not None or not self._changed:
            return
        assert self._thread is not None, "the journal was never started"
        self._under_way = self._seal()
        self._thread.submit(self._under_way)

    def _seal(self) -> Group:
        """All that has changed, as it is now."""
        self._number += 1
        reading = self._read_clocks()
        moment = Moment(self._time.now_ms(), reading.wall_ms, reading.boot_ms, reading.boot_id)
        self._sealed_ms = moment.engine_ms
        group = Group(self._number, moment)
        self._releasing = []
        for session, gathered in self._sessions.items():
            group.sessions.append(self._part_of(session, gathered))
        saving = self._engine.saving
        group.partitions.extend((name, saving.save_partition(name)) for name in self._partitions)
        self._keys.update(dict.fromkeys(saving.take_forgotten_keys()))
        group.keys.extend((key, saving.save_key(key)) for key in self._keys)
        self._sessions, self._partitions, self._keys = {}, {}, {}
        self._going, self._answers = self._answers, []
        self._changed = False
        self._changes = 0
        return group

    def _part_of(self, session: Session, gathered: _Gathered) -> SessionPart:
        outbox = session.outbox
        shift = session.sequence_shift
        highest = int(session.owner.highest_operation_id)
        state = SessionState(
            session.number,
            session.session_id,
            highest,
            outbox.last_sequence - shift,
            outbox.acknowledged_sequence - shift,
            shift,
        )
        part = SessionPart(state, outbox.last_sequence - shift - gathered.count + 1)
        part.dropped = gathered.dropped
        if gathered.dropped:
            return part
        part.results.extend(gathered.results)
        part.registered = self._engine.saving.save_above(session.owner, gathered.known)
        moved = sorted(number for number in gathered.progressed if number <= gathered.known)
        if moved:
            part.moved = self._engine.saving.save_some(session.owner, moved)
        session.journaled_operation_id = highest
        session.is_journaled = True
        if session.forgotten_after >= 0:
            part.unheard_after = session.forgotten_after - shift  # its results go once it is durable that it is back
        else:
            self._releasing.append((session, state.last_sequence))
        return part

    # Told by the thread.

    def tell(self, news: Group | Closed) -> None:
        """From any thread: a group is durable, or the disk fails."""
        try:
            self._loop.call_soon_threadsafe(self._hear, news)
        except RuntimeError:
            LOGGER.debug("the event loop has ended before the journal")

    def _hear(self, news: Group | Closed) -> None:
        if isinstance(news, Closed):
            if self._closed is None:
                LOGGER.error("%s; registrations and events are refused until it is", news.reason)
            self._closed = news
            return
        if self._closed is not None:
            LOGGER.warning("the journal can be written again")
            self._closed = None
        self._under_way = None
        going, self._going = self._going, []
        releasing, self._releasing = self._releasing, []
        for answer in going:
            answer()
        for session, sequence in releasing:
            session.outbox.release(sequence + session.sequence_shift)
            session.wake()
        if self._changed:
            self._go()
