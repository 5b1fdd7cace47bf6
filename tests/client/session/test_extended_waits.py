"""A client knows that its waits were extended: they are not overdue, and are registered again with the time left."""

import asyncio

import pytest
from purgatory_client import AsyncClient, batches, waits
from purgatory_client.session.pending_waits import PendingWaits

from tests.kit.eventually import until_pending

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
