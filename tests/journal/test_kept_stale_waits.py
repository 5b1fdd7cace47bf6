"""Stale timeouts of waits, and stale marks in results, across restarts."""

import asyncio
from pathlib import Path

import pytest
from purgatory_client.aio import AsyncClient
from purgatory_client.results import MARK_STALE, Outcome
from purgatory_client.sources.source_link import SourceState

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.journal.row_codec import pack_results, unpack_results
from purgatory.service.sessions.outbox import slices_of
from purgatory.service.sessions.packed import packed
from tests.client.until import until_pending
from tests.journal.kit import PATIENCE_S
from tests.journal.test_restart import free_address, start

STALE = {0: (5_000, "broker 2 is down"), 2: (7_000, "not authorised"), 3: (1, "broker 2 is down")}


@pytest.mark.slow  # starts the daemon twice
@pytest.mark.sockets
async def test_a_stale_timeout_outlives_the_daemon(tmp_path: Path) -> None:
    """A wait is registered and the daemon killed; the next daemon still fails the wait when its mark is stale."""
    address = free_address()
    daemon = start(tmp_path, address)
    try:
        async with AsyncClient(address) as client:
            await client.advance("kafka/orders-3", high_watermark=1)
            wait = asyncio.create_task(client.produce({"kafka/orders-3": 5}, timeout=600, fail_when_stale=0.2))
            other = asyncio.create_task(client.produce({"kafka/orders-3": 6}, timeout=600))
            await until_pending(client, 2)
            daemon.kill()
            daemon = start(tmp_path, address)
            await until_pending(client, 2)
            async with client.attach_source("kafka", ["kafka/"]) as link:
                await link.report(SourceState.STALE, "broker 2 is down")
                result = await asyncio.wait_for(wait, PATIENCE_S)
            assert result.outcome is Outcome.FAILED
            assert result.partitions["kafka/orders-3"].error_code == MARK_STALE
            assert not other.done()
            other.cancel()
        assert daemon.stop() == 0
    finally:
        daemon.kill()


def test_stale_marks_are_kept_with_results() -> None:
    """Results keep their stale marks in a row of the journal, and when they are concatenated with others."""
    engine = Engine(EngineLimits(), 0)
    names = [("orders", place) for place in range(4)]
    ids = [1, 2, 3, 4]
    batch = OperationBatch(ids, partitions=names, item_indexes=[0, 1, 2, 3], offsets=[5], timeouts_ms=[0])
    engine.register(engine.add_owner(), PRODUCE, batch, 0)
    [completions] = engine.take_completions()
    [without] = unpack_results(pack_results([completions])[0], 0)
    assert not isinstance(without, list)
    assert without.stale_marks == {}
    completions.stale_marks = STALE
    content, count = pack_results([completions])
    [again] = unpack_results(content, 0)
    assert count == 4
    assert not isinstance(again, list)
    assert again.stale_marks == STALE
    [whole] = slices_of(again)
    first, rest = whole.split(1)
    assert packed([rest, first]).stale_marks == {1: STALE[2], 2: STALE[3], 3: STALE[0]}
    assert whole.held_bytes() > slices_of(without)[0].held_bytes()
