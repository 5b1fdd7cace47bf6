"""Waits that the daemon should have answered long ago fail; waits that it may still answer do not."""

import asyncio
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client, ClosedSession, errors, waits
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.session import pending_waits, session_core
from purgatory_client.session.pending_waits import GRACE, Ended
from purgatory_client.session.session_core import SessionCore
from purgatory_client.waits import Wait
from purgatory_client.wire import sizes

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.session.wire_script import Response, many, opened, receipt, results, sent
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import until_pending

pytestmark = pytest.mark.sockets

TIMEOUT = 5.0
DUE = TIMEOUT + GRACE


def one() -> Wait:
    return waits.produce({"orders-3": 1}, timeout=TIMEOUT)


def submitted(*entries: Entry) -> SessionCore:
    """A session that has sent these entries at time 0."""
    core = SessionCore("s", 1_000_000)
    for entry in entries:
        core.submit(entry, 0.0)
    core.receive(opened(), 0.0)
    sent(core, 0.0)
    return core


def visited(core: SessionCore, heard_at: float, times: int = 2) -> list[Ended]:
    """The waits that fail in this number of rounds of a small session."""
    return [ended for _ in range(times) for ended in core.fail_overdue(heard_at)]


def answers(ended: list[Ended]) -> list[type]:
    return [type(answer) for _, answer in ended]


def test_a_wait_fails_a_while_after_its_timeout() -> None:
    """A wait fails only after its timeout plus the grace, and only if it was overdue in two rounds."""
    core = submitted(one())
    core.receive(receipt(1), 0.1)
    assert visited(core, DUE) == []
    assert visited(core, DUE + 0.1, times=1) == []
    assert answers(visited(core, DUE + 0.2, times=1)) == [errors.NoAnswer]
    assert core.pending == 0
    assert core.receive(results(1, [1]), DUE + 1) == []


def test_a_wait_that_another_caller_extended_is_overdue_later() -> None:
    core = submitted(one())
    core.receive(receipt(1), 0.1)
    extended = wire.OperationsExtended(operation_ids=[1, 7], timeout_ms=60_000)
    assert core.receive(wire.SessionResponse(extended=extended), 4.0) == []
    assert visited(core, 64.0 + GRACE) == []
    assert answers(visited(core, 64.1 + GRACE)) == [errors.NoAnswer]


def test_the_grace_is_a_share_of_a_long_timeout() -> None:
    core = submitted(waits.produce({"orders-3": 1}, timeout=1_000))
    core.receive(receipt(1), 0.1)
    assert visited(core, 1_099.0) == []
    assert answers(visited(core, 1_101.0)) == [errors.NoAnswer]


def test_a_wait_that_was_answered_meanwhile_does_not_fail() -> None:
    """A result that is read between the two rounds, as after a blocked event loop, keeps its wait from failing."""
    wait = one()
    core = submitted(wait)
    core.receive(receipt(1), 0.1)
    assert visited(core, 100.0, times=1) == []
    [(ended, _)] = core.receive(results(1, [1]), 100.0)
    assert ended is wait
    assert visited(core, 101.0) == []


def test_a_batch_fails_by_its_longest_timeout() -> None:
    batch = many(3)
    batch.longest_timeout_ms = 9_000
    core = submitted(batch)
    core.receive(receipt(1), 0.1)
    core.receive(results(1, [2]), 0.2)
    assert visited(core, DUE + 1) == []
    [(ended, _)] = visited(core, DUE + 5)
    assert isinstance(ended, WaitBatch)
    assert ended.outcomes == [ended.outcomes[0], 1, ended.outcomes[0]]
    assert [type(error) for error in ended.answer().refusals.values()] == [errors.NoAnswer] * 2


def test_what_the_daemon_does_not_have_yet_gets_its_time() -> None:
    """While receipts arrive, operations without one keep waiting; when receipts stop, they fail too, sent or not."""
    entries = [many(10_000) for _ in range(sizes.WINDOW + 1)]
    core = submitted(*entries)
    core.receive(receipt(1), DUE + 5)
    assert [ended for ended, _ in visited(core, DUE + 6)] == [entries[0]]
    failed = visited(core, DUE + 5 + GRACE + 1)
    assert [ended for ended, _ in failed] == entries[1:]
    assert core.pending == 0


def test_nothing_fails_without_a_connection_or_soon_after_one() -> None:
    core = submitted(one())
    core.connection_lost(1.0)
    assert visited(core, 1_000.0) == []
    core.receive(opened(resumed=True, highest=1), 1_000.0)
    assert visited(core, 1_000.0 + GRACE) == []
    assert answers(visited(core, 1_000.0 + GRACE + 1)) == [errors.NoAnswer]


def test_without_a_timeout_the_daemons_default_counts() -> None:
    for said, expected in ((0, []), (2_000, [errors.NoAnswer])):
        core = SessionCore("s", 100)
        core.submit(waits.produce({"orders-3": 1}), 0.0)
        opening = opened()
        opening.opened.timeout_ms_default = said
        core.receive(opening, 0.0)
        sent(core, 0.0)
        core.receive(receipt(1), 0.1)
        assert answers(visited(core, 1_000.0)) == expected


def test_round_visits_all_waits_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_waits, "VISITS_MIN", 10)
    entries = [one() for _ in range(300)]
    core = submitted(*entries)
    core.receive(receipt(1), 0.1)
    parts = [len(core.fail_overdue(100.0)) for _ in range(2 * pending_waits.TURNS_PER_ROUND)]
    assert parts == [0] * 10 + [30] * 10


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that give the daemon half a second, and check twice as often."""
    for module in (pending_waits, session_core):
        monkeypatch.setattr(module, "GRACE", 0.5)
    monkeypatch.setattr("purgatory_client.session.session_driver.TURN", 0.1)


def swallow_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads no more results, as if the daemon had none."""
    receive = SessionCore.receive

    def without_results(core: SessionCore, message: Response, now: float) -> list[Ended]:
        return [] if message.HasField("results") else receive(core, message, now)

    monkeypatch.setattr(SessionCore, "receive", without_results)


async def test_a_daemon_that_never_answers_is_found_out(
    run_daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch, impatient: None, tmp_path: Path
) -> None:
    daemon = await run_daemon("--session-heartbeat-interval-ms", "200")
    swallow_results(monkeypatch)

    def blocking() -> None:
        with Client(daemon.address) as client:
            client.produce({"orders-3": 1}, timeout=0.1)

    async with (
        AsyncClient(daemon.address) as client,
        AsyncClient(daemon.address, outbox=tmp_path / "calls.db") as kept,
        asyncio.timeout(60),
    ):
        ticket = await kept.submit(waits.produce({"orders-3": 1}, timeout=0.1))
        alone, batch, stored, blocked = await asyncio.gather(
            client.produce({"orders-3": 1}, timeout=0.1),
            client.produce_many(["orders-3"], offsets=[1, 2], indexes=[0, 0], timeouts_ms=[100]),
            kept.result(ticket),
            asyncio.to_thread(blocking),
            return_exceptions=True,
        )
        assert [type(error) for error in (alone, stored, blocked)] == [errors.NoAnswer] * 3
        assert "did not answer" in str(alone)
        assert not isinstance(batch, BaseException)
        assert [type(error) for error in batch.refusals.values()] == [errors.NoAnswer] * 2


async def test_closed_session_fails_its_waits_and_the_next_wait_opens_another(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    async with AsyncClient(daemon.address) as client, AsyncClient(daemon.address) as operator:
        waiting = asyncio.create_task(client.produce({"orders-3": 1}, timeout=60))
        before = client.session_id
        await until_pending(operator, 1)
        assert await operator.close_session(before) == ClosedSession(cancelled=1, results_dropped=0)
        with pytest.raises(errors.SessionClosed, match=before):
            await waiting
        assert (await client.produce({"orders-3": 1}, timeout=0)).outcome.name == "EXPIRED"
        assert client.session_id != before
        with pytest.raises(errors.NotFound):
            await operator.close_session(before)
