"""A client knows that its waits were extended: they are not overdue, and are registered again with the time left."""

from purgatory_client import batches, waits
from purgatory_client.session.pending_waits import PendingWaits

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
