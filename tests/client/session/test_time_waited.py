"""A client knows that its waits were extended: they are not overdue, and are registered again with the time left. It
also knows how long they had waited before they were registered again.
"""

import asyncio
import time

import pytest
from purgatory_client import AsyncClient, batches, waits
from purgatory_client.results import Result, ResultColumns
from purgatory_client.session.pending_waits import PendingWaits
from purgatory_client.session.session_core import SessionCore

from tests.client.session.wire_script import many, opened, registered, results, sent
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually, until_pending
from tests.kit.proxy import FaultyProxy

NOW = 100.0


def test_extended_waits_have_more_time() -> None:
    """Timeouts count from the submission, so the time that has passed is added; a longer timeout is kept."""
    table = PendingWaits()
    entries = [waits.produce({"t-0": 1}, timeout=timeout) for timeout in (1, 100, None)]
    for entry in entries:
        table.add(entry)
        entry.submitted_at = NOW
    table.extend([1, 2, 3, 99], 50_000, 30_000, NOW + 0.5)
    assert [entry.timeout_ms for entry in entries] == [50_500, 100_000, 50_500]


def test_extended_operations_of_a_batch() -> None:
    """Only the given operations have more time; the batch is overdue by its longest timeout."""
    table = PendingWaits()
    batch = batches.produce(["t-0"], offsets=[1, 2, 3], timeouts_ms=[1_000])
    table.add(batch)
    batch.submitted_at = NOW
    table.extend([2], 5_000, 30_000, NOW + 1)
    assert (batch.timeouts_ms, batch.longest_timeout_ms) == ([1_000, 6_000, 1_000], 6_000)
    default = batches.produce(["t-0"], offsets=[1, 2])
    table.add(default)
    default.submitted_at = NOW
    table.extend([4], 40_000, 30_000, NOW)
    assert (default.timeouts_ms, default.longest_timeout_ms) == ([40_000, 30_000], 40_000)


def test_many_operations_of_a_batch_are_extended_at_once() -> None:
    """The time grows with the number of ids, not with its square: 100,000 would otherwise take minutes."""
    table = PendingWaits()
    batch = batches.produce(["t-0"], offsets=range(100_000))
    table.add(batch)
    batch.submitted_at = NOW
    table.extend(range(1, 100_001), 50_000, 30_000, NOW)
    assert (set(batch.timeouts_ms), batch.longest_timeout_ms) == ({50_000}, 50_000)


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


@pytest.mark.parametrize("is_known", [False, True], ids=["forgotten", "known"])
def test_time_waited_counts_from_the_first_registration(is_known: bool) -> None:
    """The daemon counts from its own registration, which is a second one if it forgot the session. Here each result of
    the daemon says 5 ms, and a second passed before.
    """
    core = SessionCore("s", 10)
    core.receive(opened(incarnation="first"), 0.0)
    wait, batch = waits.produce({"orders-3": 1}, timeout=5), many(2)
    core.submit(wait, 0.0)
    core.submit(batch, 0.0)
    sent(core, 0.0)
    core.connection_lost(0.5)
    core.receive(opened(resumed=is_known, highest=3 * is_known, incarnation="first" if is_known else "second"), 1.0)
    assert registered(sent(core, 1.0)) == ([] if is_known else [[1], [2, 3]])
    ended = dict(core.receive(results(1, [1, 2, 3]), 2.0))
    before_ms = 0 if is_known else 1_000
    single, many_results = ended[wait], ended[batch]
    assert isinstance(single, Result)
    assert isinstance(many_results, ResultColumns)
    assert round(single.waited * 1_000) == before_ms + 5
    assert many_results.waited_ms == [before_ms + 5] * 2


@pytest.mark.sockets
async def test_time_of_a_unary_wait_includes_the_time_before_it_was_sent_again(shared_daemon: DaemonProcess) -> None:
    """Its first call ends with the connection, so the daemon counts from the second one."""
    async with (
        AsyncClient(shared_daemon.address) as direct,
        FaultyProxy(shared_daemon.address) as proxy,
        AsyncClient(proxy.address) as client,
    ):

        async def registered() -> int:
            return sum(kind.registered for kind in (await direct.status()).kinds)

        others = await registered()
        waiting = asyncio.create_task(client.wait_once(waits.produce({"unary-again-0": 1}, timeout=60)))
        await until_pending(direct, 1)
        began = time.monotonic()
        await asyncio.sleep(0.2)  # time that only the first call has waited
        before = time.monotonic() - began
        proxy.drop_all()

        async def is_sent_again() -> bool:
            return await registered() == others + 2

        # Not until nothing is pending: that may be too short to be seen.
        await eventually(is_sent_again)
        await until_pending(direct, 1)
        await direct.advance("unary-again-0", high_watermark=1)
        assert (await waiting).waited >= before
