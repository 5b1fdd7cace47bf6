"""Time in a session: waits that the daemon should have answered long ago fail; waits that are extended or registered
again count the time that they have waited.
"""

import asyncio
import time
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client, batches, errors, waits
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.results import Result, ResultColumns
from purgatory_client.session import pending_waits
from purgatory_client.session.pending_waits import GRACE, Ended, PendingWaits
from purgatory_client.session.session_core import SessionCore
from purgatory_client.waits import Wait
from purgatory_client.wire import sizes

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.session.wire_script import Response, many, open_core, opened, receipt, registered, results, sent
from tests.kit.daemon import DaemonProcess, RunDaemon
from tests.kit.eventually import eventually, until_pending
from tests.kit.proxy import FaultyProxy

pytestmark = pytest.mark.sockets

TIMEOUT = 5.0
DUE = TIMEOUT + GRACE
NOW = 100.0


def one(timeout: float = TIMEOUT) -> Wait:
    return waits.produce({"orders-3": 1}, timeout=timeout)


def receipted(*entries: Entry, **opening: object) -> SessionCore:
    """A session that has sent these waits at time 0, and has the receipt of the first."""
    core = open_core(*entries, **opening)
    core.receive(receipt(1), 0.1)
    return core


def visited(core: SessionCore, heard_at: float, times: int = 2) -> list[Ended]:
    """The waits that fail in this number of rounds of a small session."""
    return [ended for _ in range(times) for ended in core.fail_overdue(heard_at)]


def answers(ended: list[Ended]) -> list[type]:
    return [type(answer) for _, answer in ended]


@pytest.mark.parametrize(("timeout", "due"), [(TIMEOUT, DUE), (1_000, 1_100)])
def test_a_wait_fails_a_while_after_its_timeout(timeout: float, due: float) -> None:
    """A wait fails only after its timeout plus the grace, which is a share of a long timeout, and only if it was
    overdue in two rounds.
    """
    core = receipted(one(timeout))
    assert visited(core, due) == []
    assert visited(core, due + 0.1, times=1) == []
    assert answers(visited(core, due + 0.2, times=1)) == [errors.NoAnswer]
    assert core.pending == 0
    assert core.receive(results(1, [1]), due + 1) == []


def test_a_wait_that_another_caller_extended_is_overdue_later() -> None:
    core = receipted(one())
    extended = wire.OperationsExtended(operation_ids=[1, 7], timeout_ms=60_000)
    assert core.receive(wire.SessionResponse(extended=extended), 4.0) == []
    assert visited(core, 64.0 + GRACE) == []
    assert answers(visited(core, 64.1 + GRACE)) == [errors.NoAnswer]


def test_a_wait_that_was_answered_meanwhile_does_not_fail() -> None:
    """A result that is read between the two rounds, as after a blocked event loop, keeps its wait from failing."""
    core = receipted(one())
    assert visited(core, 100.0, times=1) == []
    assert len(core.receive(results(1, [1]), 100.0)) == 1
    assert visited(core, 101.0) == []


def test_a_batch_fails_by_its_longest_timeout() -> None:
    batch = many(3)
    batch.longest_timeout_ms = 9_000
    core = receipted(batch)
    core.receive(results(1, [2]), 0.2)
    assert visited(core, DUE + 1) == []
    [(ended, _)] = visited(core, DUE + 5)
    assert isinstance(ended, WaitBatch)
    assert ended.outcomes == [ended.outcomes[0], 1, ended.outcomes[0]]
    assert [type(error) for error in ended.answer().refusals.values()] == [errors.NoAnswer] * 2


def test_what_the_daemon_does_not_have_yet_gets_its_time() -> None:
    """While receipts arrive, operations without one keep waiting; when receipts stop, they fail too, sent or not."""
    entries = [many(10_000) for _ in range(sizes.WINDOW + 1)]
    core = open_core(*entries)
    core.receive(receipt(1), DUE + 5)
    assert [ended for ended, _ in visited(core, DUE + 6)] == [entries[0]]
    failed = visited(core, DUE + 5 + GRACE + 1)
    assert [ended for ended, _ in failed] == entries[1:]
    assert core.pending == 0


def test_nothing_fails_without_a_connection_or_soon_after_one() -> None:
    core = open_core(one())
    core.connection_lost(1.0)
    assert visited(core, 1_000.0) == []
    core.receive(opened(resumed=True, highest=1), 1_000.0)
    assert visited(core, 1_000.0 + GRACE) == []
    assert answers(visited(core, 1_000.0 + GRACE + 1)) == [errors.NoAnswer]


def test_without_a_timeout_the_daemons_default_counts() -> None:
    for default_ms, expected in ((0, []), (2_000, [errors.NoAnswer])):
        core = receipted(waits.produce({"orders-3": 1}), timeout_ms_default=default_ms)
        assert answers(visited(core, 1_000.0)) == expected


def test_round_visits_all_waits_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_waits, "VISITS_MIN", 10)
    core = open_core()
    for _ in range(300):
        core.submit(one(), 0.0)
    sent(core, 0.0)
    core.receive(receipt(1), 0.1)
    parts = [len(core.fail_overdue(100.0)) for _ in range(2 * pending_waits.TURNS_PER_ROUND)]
    assert parts == [0] * 10 + [30] * 10


def table_of(*entries: Entry) -> PendingWaits:
    """Pending waits that were submitted now."""
    table = PendingWaits()
    for entry in entries:
        table.add(entry)
        entry.submitted_at = NOW
    return table


def test_extended_operations_of_a_batch() -> None:
    """Only the given operations have more time; the batch is overdue by its longest timeout."""
    batch = batches.produce(["t-0"], offsets=[1, 2, 3], timeouts_ms=[1_000])
    default = batches.produce(["t-0"], offsets=[1, 2])
    table = table_of(batch, default)
    table.extend([2], 5_000, 30_000, NOW + 1)
    assert (batch.timeouts_ms, batch.longest_timeout_ms) == ([1_000, 6_000, 1_000], 6_000)
    table.extend([4], 40_000, 30_000, NOW)
    assert (default.timeouts_ms, default.longest_timeout_ms) == ([40_000, 30_000], 40_000)


def test_many_operations_of_a_batch_are_extended_at_once() -> None:
    """The time grows with the number of ids, not with its square: 100,000 would otherwise take minutes."""
    batch = batches.produce(["t-0"], offsets=range(100_000))
    table_of(batch).extend(range(1, 100_001), 50_000, 30_000, NOW)
    assert (set(batch.timeouts_ms), batch.longest_timeout_ms) == ({50_000}, 50_000)


def test_time_waited_counts_from_the_first_registration() -> None:
    """The daemon counts from its own registration, which is the second one for operations that it does not know. Here
    it knows the first two, each of its results says 5 ms, and a second passed before.
    """
    wait, batch = one(), many(2)
    core = open_core(wait, batch, incarnation="first")
    core.connection_lost(0.5)
    core.receive(opened(resumed=True, highest=2, incarnation="first"), 1.0)
    assert registered(sent(core, 1.0)) == [[3]]
    ended = dict(core.receive(results(1, [1, 2, 3]), 2.0))
    single, many_results = ended[wait], ended[batch]
    assert isinstance(single, Result)
    assert isinstance(many_results, ResultColumns)
    assert [round(single.waited * 1_000), *many_results.waited_ms] == [5, 5, 1_005]


async def test_only_pending_operations_are_extended(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that the daemon does not have keeps its timeout: it may be on its way in a batch without timeouts,
    which is encoded by those of its first wait.
    """
    extended: list[int] = []
    monkeypatch.setattr(client._session, "extended", lambda ids, timeout_ms: extended.extend(ids))
    waiting = asyncio.create_task(client.produce({"t-0": 1}))
    await until_pending(client, 1)
    assert await client.extend([1, 2], 3_600) == [2]
    assert extended == [1]
    waiting.cancel()


async def test_time_of_a_unary_wait_includes_the_time_before_it_was_sent_again(shared_daemon: DaemonProcess) -> None:
    """Its first call ends with the connection, so the daemon counts from the second one."""
    async with (
        AsyncClient(shared_daemon.address) as direct,
        FaultyProxy(shared_daemon.address) as proxy,
        AsyncClient(proxy.address) as client,
    ):

        async def count() -> int:
            return sum(kind.registered for kind in (await direct.status()).kinds)

        others = await count()
        waiting = asyncio.create_task(client.wait_once(waits.produce({"unary-again-0": 1}, timeout=60)))
        await until_pending(direct, 1)
        began = time.monotonic()
        await asyncio.sleep(0.2)  # time that only the first call has waited
        before = time.monotonic() - began
        proxy.drop_all()

        async def is_sent_again() -> bool:
            return await count() == others + 2

        # Not until nothing is pending: that may be too short to be seen.
        await eventually(is_sent_again)
        await until_pending(direct, 1)
        await direct.advance("unary-again-0", high_watermark=1)
        assert (await waiting).waited >= before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that give the daemon half a second, check twice as often, and read no results, as if it had none."""
    monkeypatch.setattr(pending_waits, "GRACE", 0.5)
    monkeypatch.setattr("purgatory_client.session.session_driver.TURN", 0.1)
    receive = SessionCore.receive

    def without_results(core: SessionCore, message: Response, now: float) -> list[Ended]:
        return [] if message.HasField("results") else receive(core, message, now)

    monkeypatch.setattr(SessionCore, "receive", without_results)


async def test_a_daemon_that_never_answers_is_found_out(run_daemon: RunDaemon, impatient: None, tmp_path: Path) -> None:
    daemon = await run_daemon("--session-heartbeat-interval-ms", "200")

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
