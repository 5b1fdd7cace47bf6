"""What the page shows of waits: why each is pending, searches, and samples of the last hour."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from purgatory_client import AsyncClient, events
from purgatory_client.batches import produce
from purgatory_client.sources.source_link import SourceState

from purgatory.clock import SystemClock
from purgatory.engine.ranking import WheelRing
from purgatory.extensions.page import daemon_views, last_hour
from purgatory.extensions.page.daemon_views import COUNTED_AT_ONCE, BucketCounts
from purgatory.extensions.page.last_hour import SAMPLES_MAX, LastHour
from purgatory.extensions.page.operation_view import detailed_fields
from purgatory.extensions.page.ranked_waits import KEPT_S, RankedWaits, WaitsQuery
from purgatory.extensions.page.session_view import session_details
from purgatory.service.metrics.metrics import Metrics
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit import messages
from tests.kit.eventually import eventually
from tests.kit.served_host import ServedHost, serving
from tests.scripts.engine_level import EngineLevel

NAME = ("orders", 3)
TIMEOUT = [600_000]


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
        used_s = time.thread_time()
        assert await found("a" + " " * 60_000 + "b") == ([], 0, 0)
        assert time.thread_time() - used_s < 20, "the time must not grow with the square of the length"
        call = served.stub.Wait(wire.WaitRequest(operation=messages.signal(0, "job", timeout_ms=600_000)))
        await eventually(lambda: served.host.engine.pending == 7, "the call waits")
        assert await found("call 1") == ([("", 1)], 1, 0)
        call.cancel()


async def test_searches_that_are_over_are_forgotten(served: ServedHost) -> None:
    """A ranking without viewers is dropped at the next picture of another one, because each delays the others."""
    account, ranked = served.host.sessions.accounts.nobody, RankedWaits(served.host)
    for search in ("c", "ch", "che"):
        await ranked.show(account, WaitsQuery(search))
    assert len(ranked._kept) == 3
    for kept in ranked._kept.values():
        kept.shown_s -= 2 * KEPT_S
    await ranked.show(account, WaitsQuery("che"))
    assert [search for _, search, *_ in ranked._kept] == ["che"]


async def test_the_failure_arm_holds_nothing_back() -> None:
    """Each item of the success arm has a reason, those of the failure arm have none. Time goes on during a picture."""
    async with serving(clock=_Restless()) as served:
        partitions = [operation_pb2.TopicPartition(topic="orders", partition=place) for place in range(3)]
        columns = operation_pb2.OperationColumns(
            kind=operation_pb2.OPERATION_KIND_COMPOSITE, partitions=partitions, operation_id=[1, 2], item_count=[3],
            item_index=[0, 1, 2] * 2, offset=[50], unless_count=[1], timeout_ms=[600_000],
        )  # fmt: skip
        batch = wire.RegisterBatch(columns=columns)
        answer = await served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))
        assert answer.receipt.accepted == 2, answer
        (session,) = served.host.sessions
        view = served.host.engine.inspection.describe(session.owner, 1)
        assert view is not None
        held = [item.get("held_back_by", "") for item in detailed_fields(served.host, view)["items"]]
        assert held == [*(f"nothing has been reported for orders-{place} yet" for place in range(2)), ""]
        assert [row["id"] for row in session_details(served.host, session, session.account)["waits"]] == [2, 1]


class _Restless(SystemClock):
    """A clock that shows a later time whenever it is read."""

    reads = 0

    def now_ms(self) -> int:
        self.reads += 1
        return super().now_ms() + self.reads

    def ceiling_ms(self) -> int:
        return self.now_ms() + 1


async def test_samples_become_rates_and_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the wall clock; percentiles cover the interval between two samples only."""
    async with serving() as served:
        metrics = Metrics()
        hour = LastHour(served.host, metrics)
        assert hour.picture() == {}
        hour.sample(1_000.0)
        metrics.waits[1, 1].observe(3, 90)
        metrics.waits[1, 1].observe(9_999_999, 10)
        metrics.lateness[1].observe(0, 7)
        metrics.event_results["high_watermark", "applied"] += 500
        hour.sample(1_010.0)
        monkeypatch.setattr(last_hour, "wall_ms", lambda: 5_000_000)
        hour.sample(1_020.0)
        picture = hour.picture()
        assert picture["at"][1] - picture["at"][0] == pytest.approx(10)
        assert picture["at"][1] == pytest.approx(5_000 - time.monotonic() + 1_020, abs=60)
        assert picture["events"] == [50.0, 0.0]
        assert (picture["wait_p50"], picture["wait_p95"]) == ([5, None], [1_800_000, None])
        assert picture["late_p99"] == [0, None]
        assert {len(column) for name, column in picture.items() if name != "bounds"} == {2}
        assert hour.picture() is picture


async def test_samples_are_an_hour_at_most() -> None:
    async with serving() as served:
        hour = LastHour(served.host, Metrics())
        for number in range(SAMPLES_MAX + 50):
            hour.sample(float(number))
        at = hour.picture()["at"]
        assert (len(at), at[-1] - at[0]) == (SAMPLES_MAX - 1, pytest.approx(SAMPLES_MAX - 2))


def held(rings: list[WheelRing]) -> int:
    return sum(sum(ring.counts) for ring in rings)


def test_large_buckets_are_counted_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time for it, a large bucket has a lower bound until a later picture."""
    level = EngineLevel.played(f"produce 1..{3 * COUNTED_AT_ONCE} orders-0@5 timeout=9000")
    buckets = BucketCounts(level.engine)
    monkeypatch.setattr(daemon_views, "COUNT_S", -1.0)
    rings = buckets.count()
    assert held(rings) == COUNTED_AT_ONCE
    assert [buckets.is_cut(ring, place) for ring in rings for place in range(20)].count(True) == 1
    monkeypatch.setattr(daemon_views, "COUNT_S", 60.0)
    rings = buckets.count()
    assert held(rings) == 3 * COUNTED_AT_ONCE
    assert not any(buckets.is_cut(ring, place) for ring in rings for place in range(20))
    level.pass_time(10_000)
    assert held(buckets.count()) == 0
