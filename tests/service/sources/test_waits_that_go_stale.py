"""Results of waits whose marks are stale, and stale timeouts, at a served host."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from purgatory_client import waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import WaitExpired, WaitStale
from purgatory_client.results import MARK_STALE, Outcome, Result
from purgatory_client.sources.source_link import SourceLink, SourceState, StaleMarks

from purgatory.service.sources.stale_reaper import UNREPORTED
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.served_host import ServedHost, serving

REASON = "broker 2 is down"
ORDERS = StaleMarks("kafka/orders", exact=True, partitions=[3], stale_ms=60_000, reason=REASON)


@asynccontextmanager
async def a_source(served: ServedHost) -> AsyncIterator[tuple[AsyncClient, SourceLink]]:
    """A source of all of kafka/ that sees everything."""
    async with AsyncClient(served.address) as client, client.attach_source("kafka://b:9092", ["kafka/"]) as link:
        await link.report(SourceState.LIVE)
        await eventually(lambda: stale_reason(served) is None and served.host.sources.attached == 1, "it is live")
        yield client, link


def stale_reason(served: ServedHost) -> str | None:
    """Return why orders-3 is stale."""
    mark = served.host.sources.stale(("kafka/orders", 3), served.host.time.now_ms())
    return None if mark is None else mark.reason


async def stale(served: ServedHost, link: SourceLink, *stale: StaleMarks) -> None:
    """Report these marks as stale."""
    await link.report(SourceState.STALE, REASON, stale)
    await eventually(lambda: stale_reason(served) == REASON, "orders-3 is stale")


def said(result: Result) -> dict[str, tuple[int, bool, str]]:
    """For each partition: its error code, whether it was stale for at least the reported minute, and why."""
    return {
        name: (one.error_code, one.stale_for is not None and one.stale_for >= 60, one.stale_reason)
        for name, one in result.partitions.items()
    }


async def ask(client: AsyncClient, *, is_once: bool, timeout: float, fail_when_stale: float | None = None) -> Result:  # noqa: ASYNC109
    """Wait for two partitions, by a unary call (in the row form) or in a session (in columns)."""
    offsets = {"kafka/orders-3": 5, "kafka/orders-4": 5}
    if is_once:
        return await client.wait_once(waits.produce(offsets, timeout=timeout, fail_when_stale=fail_when_stale))
    return await client.produce(offsets, timeout=timeout, fail_when_stale=fail_when_stale)


EXPIRED_3 = {"kafka/orders-3": (7, True, REASON), "kafka/orders-4": (7, False, "")}
FAILED_3 = {"kafka/orders-3": (MARK_STALE, True, REASON), "kafka/orders-4": (7, False, "")}


@pytest.mark.parametrize("is_once", [False, True], ids=["columns", "row"])
async def test_expired_results_say_what_was_not_seen(is_once: bool) -> None:
    async with serving() as served, a_source(served) as (client, link):
        await stale(served, link, ORDERS)
        result = await ask(client, is_once=is_once, timeout=0)
        assert result.outcome == Outcome.EXPIRED
        assert said(result) == EXPIRED_3
        with pytest.raises(WaitExpired, match=rf"orders-3: -1 of 5 \(error 7, stale for 6\d\.\d s: {REASON}\)"):
            result.raise_for_outcome()
        await link.report(SourceState.LIVE)
        await eventually(lambda: stale_reason(served) is None, "it sees again")
        result = await client.produce({"kafka/orders-3": 5}, timeout=0)
        assert said(result) == {"kafka/orders-3": (7, False, "")}


@pytest.mark.parametrize("is_once", [False, True], ids=["columns", "row"])
async def test_a_wait_fails_when_it_is_stale(is_once: bool) -> None:
    """Once one of its marks has been stale for its stale timeout; its other partitions have timed out."""
    async with serving() as served, a_source(served) as (client, link):
        for partition in (3, 4):
            await served.high_watermark("kafka/orders", 1, partition)
        pending = asyncio.ensure_future(ask(client, is_once=is_once, timeout=600, fail_when_stale=0.05))
        other = asyncio.ensure_future(client.produce({"kafka/orders-3": 5}, timeout=600))
        await eventually(lambda: served.host.engine.pending == 2, "both wait")
        await served.host.stale_reaper.check()
        assert not pending.done(), "its marks are seen"
        await stale(served, link, ORDERS)
        result = await asyncio.wait_for(pending, PATIENCE_S)
        assert result.outcome == Outcome.FAILED
        assert said(result) == FAILED_3
        with pytest.raises(WaitStale):
            result.raise_for_outcome()
        assert not other.done(), "it said nothing of being stale"
        assert not served.host.engine.has_stale_waits
        other.cancel()


async def test_a_batch_has_stale_timeouts_of_its_own() -> None:
    async with serving() as served, a_source(served) as (client, link):
        pending = asyncio.ensure_future(
            client.produce_many(
                ["kafka/orders-3", "kafka/audit-0"],
                indexes=[0, 1, 0],
                offsets=[5, 5, 6],
                timeouts_ms=[600_000],
                stale_timeouts_ms=[10, 10, -1],
            )
        )
        await eventually(lambda: served.host.engine.pending == 3, "all wait")
        audit = StaleMarks("kafka/audit", stale_ms=90_000, reason="not authorised")
        await stale(served, link, ORDERS, audit)
        await eventually(lambda: served.host.engine.pending == 1, "two have failed")
        await served.high_watermark("kafka/orders", 6, 3)
        columns = await asyncio.wait_for(pending, PATIENCE_S)
        assert columns.outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.SATISFIED]
        assert columns.error_codes == [MARK_STALE, MARK_STALE, 0]
        assert columns.stale_reasons == [REASON, "not authorised", ""]
        assert columns.stale_ms[0] >= 60_000
        assert columns.stale_ms[1] >= 90_000
        assert columns.stale_ms[2] == -1


@pytest.mark.parametrize("has_source", [False, True], ids=["no source", "live source"])
@pytest.mark.parametrize("is_once", [False, True], ids=["columns", "row"])
async def test_a_wait_for_a_mark_that_nothing_reports_fails(is_once: bool, has_source: bool) -> None:
    """A mistyped name is stale from the start, with or without a source of its prefix; a reported mark is not."""
    async with AsyncExitStack() as opened:
        served = await opened.enter_async_context(serving())
        client = await opened.enter_async_context(AsyncClient(served.address))
        if has_source:
            await opened.enter_async_context(a_source(served))
        await served.high_watermark("kafka/orders", 1, 4)
        result = await asyncio.wait_for(ask(client, is_once=is_once, timeout=600, fail_when_stale=0.05), PATIENCE_S)
        assert result.outcome == Outcome.FAILED
        errors = {name: (one.error_code, one.stale_reason) for name, one in result.partitions.items()}
        assert errors == {"kafka/orders-3": (MARK_STALE, UNREPORTED), "kafka/orders-4": (7, "")}
        assert not served.host.engine.has_unreported


async def test_a_report_in_time_keeps_a_wait_that_no_source_feeds() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        pending = asyncio.ensure_future(ask(client, is_once=False, timeout=600, fail_when_stale=60))
        await eventually(lambda: served.host.engine.pending == 1, "it waits")
        for partition in (3, 4):
            await served.high_watermark("kafka/orders", 1, partition)
        assert not served.host.engine.has_unreported
        await served.host.stale_reaper.check()
        assert not pending.done()
        for partition in (3, 4):
            await served.high_watermark("kafka/orders", 5, partition)
        assert (await asyncio.wait_for(pending, PATIENCE_S)).satisfied
