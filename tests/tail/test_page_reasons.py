"""The reason that the page gives for each operation that is pending: one sentence for each cause."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from purgatory_client import AsyncClient, events
from purgatory_client.batches import WaitBatch, fetch, produce, signal
from purgatory_client.batches import delete_records as delete
from purgatory_client.sources.source_link import SourceState

from purgatory.extensions.page.ranked_waits import RankedWaits, WaitsQuery
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.service.serving import ServedHost, eventually, serving

NAME = ("orders", 3)
TIMEOUT = [600_000]
LEADER = events.leadership(NAME, is_leader=True, leader_epoch=1, leader_id=1, replica_ids=[1, 2, 3])
IN_SYNC = events.in_sync_replicas(NAME, [1, 2, 3], leader_id=1, min_in_sync_replicas=2)

FETCHED = [events.follower_progress(NAME, replica, 90, log_start_offset=0) for replica in (2, 3)]


@pytest.fixture
async def served() -> AsyncIterator[ServedHost]:
    """A host without limits that matter here."""
    async with serving() as host:
        yield host


async def reasons(served: ServedHost) -> list[str]:
    """The reasons of all pending operations."""
    account = served.host.sessions.accounts.nobody
    return [row["held_back_by"] for row in (await RankedWaits(served.host).show(account, WaitsQuery()))["rows"]]


PRODUCE = produce([NAME], offsets=[50], timeouts_ms=TIMEOUT)
DELETE = delete([NAME], offsets=[50], timeouts_ms=TIMEOUT)


@pytest.mark.parametrize(
    ("wait", "told", "reason"),
    [
        (PRODUCE, [], "nothing has been reported for orders-3 yet"),
        (PRODUCE, [events.high_watermark(NAME, 20)], "the mark is at 20"),
        (PRODUCE, [LEADER, IN_SYNC, events.log_end_offset(NAME, 40)], "the leader's log ends at 40"),
        (
            PRODUCE,
            [LEADER, IN_SYNC, events.log_end_offset(NAME, 90), events.follower_progress(NAME, 2, 30)],
            "in-sync replicas 3 (nothing reported), 2 (at 30)",
        ),
        (DELETE, [LEADER, events.log_end_offset(NAME, 90)], "the leader's log starts at 0"),
        (
            DELETE,
            [LEADER, IN_SYNC, events.log_end_offset(NAME, 90), *FETCHED, events.log_start_offset(NAME, 60)],
            "replicas 2 (at 0), 3 (at 0)",
        ),
        (
            fetch([NAME], offsets=[0], min_bytes=[1_000], timeouts_ms=TIMEOUT),
            [events.high_watermark(NAME, 0)],
            "fewer than 1,000 bytes are available",
        ),
        (signal(["job-17"], timeouts_ms=TIMEOUT), [], "job-17 has not been signalled yet"),
        (
            signal(["job-17"], counts=[3], timeouts_ms=TIMEOUT),
            [events.signalled("job-17", 2)],
            "job-17 has been signalled 2 of 3 times",
        ),
    ],
)
async def test_each_cause_has_a_reason(
    served: ServedHost, wait: WaitBatch, told: list[events.Event], reason: str
) -> None:
    """The reason names the replica that is behind, the mark that was reported, or that nothing was reported."""
    async with AsyncClient(served.address) as client:
        await client.register("s", 1, wait)
        if told:
            (await client.advance_many(told)).raise_for_refusals()
        assert await reasons(served) == [reason]


async def test_a_connector_that_holds_a_wait_back_is_named(served: ServedHost) -> None:
    """Whether it has reported nothing, has reported a lower mark, or sees nothing."""
    async with AsyncClient(served.address) as client:
        await client.register("s", 1, PRODUCE)
        async with client.attach_source("billing", ["orders"]) as link:
            await eventually(lambda: bool(served.host.sources.attached), "the source is attached")
            await link.report(SourceState.LIVE)
            await eventually(lambda: served.host.sources.stale(NAME, served.host.time.now_ms()) is None, "it is live")
            assert await reasons(served) == ["nothing has been reported by connector billing for orders-3 yet"]
            await client.advance_many([events.high_watermark(NAME, 20)])
            assert await reasons(served) == ["connector billing has reported 20 so far"]
            await link.report(SourceState.STALE, "no broker answers")
            await eventually(
                lambda: served.host.sources.stale(NAME, served.host.time.now_ms()) is not None, "it is stale"
            )
            (reason,) = await reasons(served)
            assert reason.startswith("connector billing: the mark has been stale for ")
            assert reason.endswith("no broker answers")


async def test_a_search_finds_operations_and_sessions_by_id(served: ServedHost) -> None:
    """By session and id, by id alone, and by part of a session's id, in any case. Each operation is found once."""
    account, ranked = served.host.sessions.accounts.nobody, RankedWaits(served.host)
    async with AsyncClient(served.address) as client:
        for session in ("Checkout-A", "checkout-b", "other"):
            await client.register(
                session, 7, produce([NAME], offsets=[50, 60], indexes=[0, 0], timeouts_ms=TIMEOUT * 2)
            )

        async def found(search: str) -> tuple[list[tuple[str, int]], int, int]:
            shown = await ranked.show(account, WaitsQuery(search))
            rows = sorted((str(row["session"]), int(row["id"])) for row in shown["rows"])
            return rows, shown["operations"], shown["session_count"]

        assert await found("checkout-a / 8") == ([("Checkout-A", 8)], 1, 0)
        assert await found("CHECKOUT/7") == ([("Checkout-A", 7), ("checkout-b", 7)], 2, 0)
        assert await found("8") == ([("Checkout-A", 8), ("checkout-b", 8), ("other", 8)], 3, 0)
        assert await found("checkout") == (
            [("Checkout-A", 7), ("Checkout-A", 8), ("checkout-b", 7), ("checkout-b", 8)], 4, 2
        )  # fmt: skip
        everything, count, _ = await found("Orders-3")
        assert (len(everything), count) == (6, 6)
        assert await found("9") == ([], 0, 0)
        call = served.stub.Wait(wire.WaitRequest(operation=_unary()))
        await eventually(lambda: served.host.engine.pending == 7, "the call waits")
        assert await found("call 1") == ([("", 1)], 1, 0)
        call.cancel()


def _unary() -> operation_pb2.Operation:
    return operation_pb2.Operation(
        timeout_ms=600_000,
        signal=operation_pb2.Signal(keys=[operation_pb2.SignalKey(key="job")]),
    )
