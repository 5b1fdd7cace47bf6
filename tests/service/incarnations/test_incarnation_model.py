"""Cursors of any incarnation against a model, over real streams, while a session ends and is created again in every
way.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.journal.kit import keep, new_host
from tests.service.incarnations.test_incarnations import batch_of
from tests.service.serving import PATIENCE_S, Peer, ServedHost, eventually, refused, start_server
from tests.service.test_sessions import drained

TTL_MS = 600_000
Cursor = tuple[str, int]
"""Incarnation (empty: not named) and sequence number."""
Step = tuple[str, int, int]
"""Action, index of the cursor to use, and a parameter of the action."""

STEPS = st.tuples(
    st.sampled_from(
        ["register", "register", "collect", "collect", "acknowledge", "close", "expire", "restart", "lose"]
    ),
    st.integers(0, 30),
    st.integers(0, 3),
)


@dataclass
class Life:
    """The model of one incarnation: its results are numbered from 1, and their ids equal their numbers."""

    incarnation: str
    results: int = 0
    acknowledged: int = 0


@dataclass
class Session:
    """A session, its model, and all cursors that a client may have kept of it."""

    served: ServedHost
    stack: AsyncExitStack
    life: Life | None = None
    cursors: list[Cursor] = field(default_factory=lambda: [("", 0), ("0123456789abcdef", 2)])

    async def register(self, cursor: Cursor, count: int) -> None:
        """Register operations that are satisfied at once."""
        known = 0 if self.life is None else self.life.results
        ids = range(known + 1, known + 2 + count)
        request = wire.RegisterRequest(session_id="s", batch=batch_of(*ids), incarnation=cursor[0])
        if not self._is_present(cursor):
            with refused(grpc.StatusCode.NOT_FOUND):
                await self.served.stub.Register(request)
            return
        answer = await self.served.stub.Register(request)
        self._note(answer.incarnation)
        assert self.life is not None
        self.life.results += len(ids)
        assert answer.receipt.highest_operation_id == self.life.results

    async def collect(self, cursor: Cursor, how: int) -> None:
        """Open a stream with a cursor and read all results that it must deliver."""
        incarnation, sequence = cursor
        is_blank = self.life is None or not self.life.results
        resumed = not is_blank and self._is_present(cursor)
        assert self.life is None or sequence <= self.life.results or not resumed
        if resumed and self.life is not None:
            self.life.acknowledged = max(self.life.acknowledged, sequence)
        if how == 0:
            request = wire.StreamResultsRequest(session_id="s", last_sequence=sequence, incarnation=incarnation)
            call = self.served.stub.StreamResults(request)
            opened = (await call.read()).opened
        else:
            peer = await Peer(self.served, "s").open(sequence, columns=how == 1, incarnation=incarnation)
            call, opened = peer, peer.opened
        assert opened.resumed == resumed
        self._note(opened.incarnation)
        assert self.life is not None
        next_sequence = self.life.acknowledged + 1
        while next_sequence <= self.life.results:
            batch = (await asyncio.wait_for(call.read(), PATIENCE_S)).results
            ids = [*batch.columns.operation_id, *(one.operation_id for one in batch.rows.results)]
            assert batch.first_sequence == next_sequence
            assert ids == list(range(next_sequence, next_sequence + len(ids)))
            next_sequence += len(ids)
        self.cursors += [(opened.incarnation, number) for number in range(self.life.results + 1)]
        call.cancel()
        await drained(self.served, "s")

    async def acknowledge(self, cursor: Cursor) -> None:
        """Acknowledge by a separate call."""
        incarnation, sequence = cursor
        request = wire.AcknowledgeRequest(session_id="s", sequence=sequence, incarnation=incarnation)
        if self.life is None or not self._is_present(cursor):
            with refused(grpc.StatusCode.NOT_FOUND):
                await self.served.stub.Acknowledge(request)
            return
        await self.served.stub.Acknowledge(request)
        self.life.acknowledged = max(self.life.acknowledged, sequence)

    async def close(self) -> None:
        if self.life is not None:
            await self.served.stub.CloseSession(wire.CloseSessionRequest(session_id="s"))
        self.life = None

    async def expire(self) -> None:
        """Let the session's time to live pass."""
        host = self.served.host
        assert isinstance(self.served.clock, ManualClock)
        self.served.clock.jump(TTL_MS)
        await eventually(lambda: host.sessions.find("s") is None, "the session is dropped")
        self.life = None

    def check(self) -> None:
        """Check that the daemon's session equals the model: nothing else was acknowledged."""
        session = self.served.host.sessions.find("s")
        assert (session is None) == (self.life is None)
        if session is not None and self.life is not None:
            kept = (session.incarnation, session.outbox.last_sequence, session.outbox.acknowledged_sequence)
            assert kept == (self.life.incarnation, self.life.results, self.life.acknowledged)

    def restarted(self, *, journal: bool) -> None:
        """Restart. A session survives only with a journal, and only if it has something to keep."""
        if not journal or (self.life is not None and not self.life.results):
            self.life = None

    def _is_present(self, cursor: Cursor) -> bool:
        """Return whether a cursor names the present incarnation, or none."""
        return not cursor[0] or (self.life is not None and self.life.incarnation == cursor[0])

    def _note(self, incarnation: str) -> None:
        """Record the incarnation in the answer: the call created the session, or it is still the same."""
        if self.life is None:
            assert incarnation not in {known for known, _ in self.cursors}, "an incarnation came back"
            self.life = Life(incarnation)
            self.cursors.append((incarnation, 0))
        assert incarnation == self.life.incarnation


async def serve(folder: Path, clock: ManualClock) -> tuple[ServedHost, AsyncExitStack]:
    """A daemon's host on the journal in a folder; closing the stack ends it cleanly."""
    stack = AsyncExitStack()
    host = new_host(clock)
    opened = await keep(host, folder, clock)
    stack.push_async_callback(opened.close, PATIENCE_S)
    stack.push_async_callback(host.stop)
    server, port = await start_server(host)
    stack.push_async_callback(server.stop, 0)
    served = await stack.enter_async_context(ServedHost(host, server, port, clock))
    await served.high_watermark("orders", 1)
    return served, stack


async def live(steps: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock, lives = ManualClock(1_000), itertools.count()
        session = Session(*await serve(Path(folder) / str(next(lives)), clock))
        place = 0
        try:
            for what, chosen, how in steps:
                cursor = session.cursors[chosen % len(session.cursors)]
                if what == "register":
                    await session.register(cursor, how)
                elif what == "collect":
                    await session.collect(cursor, how)
                elif what == "acknowledge":
                    await session.acknowledge(cursor)
                elif what == "close":
                    await session.close()
                elif what == "expire":
                    await session.expire()
                else:
                    await session.stack.aclose()
                    place = next(lives) if what == "lose" else place
                    session.served, session.stack = await serve(Path(folder) / str(place), clock)
                    session.restarted(journal=what == "restart")
                session.check()
        finally:
            await session.stack.aclose()


@pytest.mark.slow
@settings(max_examples=5, deadline=None, phases=[Phase.reuse, Phase.generate])  # shrinking would take minutes
@given(st.lists(STEPS, min_size=4, max_size=14))
def test_a_cursor_loses_nothing(steps: list[Step]) -> None:
    """Through closing, expiry and restarts with and without the journal: whichever cursor a client reconnects with, it
    gets every result of the present incarnation that cursors of this incarnation have not acknowledged.
    """
    asyncio.run(live(steps))
