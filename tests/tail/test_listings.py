"""Listings: names with the most waits, searches and pages of operations, and the waits on the live page."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from purgatory_client import AsyncClient, events
from purgatory_client.batches import produce
from purgatory_client.sources.source_link import SourceState

from purgatory import sizes
from purgatory.clock import SystemClock
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.ranking import WheelRing
from purgatory.extensions.page import daemon_views, last_hour, ranked_waits
from purgatory.extensions.page.daemon_views import COUNTED_AT_ONCE, BucketCounts, DaemonViews
from purgatory.extensions.page.last_hour import SAMPLES_MAX, LastHour
from purgatory.extensions.page.page_fields import detailed_fields, session_details
from purgatory.extensions.page.ranked_waits import KEPT_S, RankedWaits, WaitsQuery
from purgatory.service.access.account import AS_FOR_ALL
from purgatory.service.access.roles import NONE
from purgatory.service.errors import RpcError
from purgatory.service.listeners.listener import Listener
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc import inspection_calls
from purgatory.service.rpc.inspection_calls import SingleFlight
from purgatory.service.translate.operations import OperationRun
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import produce_columns, signal
from tests.kit.served_host import ServedHost, serving
from tests.scripts.engine_level import EngineLevel


@pytest.fixture
async def served() -> AsyncIterator[ServedHost]:
    """A host without limits that matter here."""
    async with serving() as host:
        yield host


def watch(served: ServedHost, counts: dict[tuple[str, int], int]) -> None:
    """Register the given number of waits for each partition, or for the key in (key, -1)."""
    session, _ = served.host.sessions.open("s", served.host.time.now_ms())
    partitions = [name for name, count in counts.items() if name[1] >= 0 for _ in range(count)]
    keys = [name[0] for name, count in counts.items() if name[1] < 0 for _ in range(count)]
    first = 1
    for kind, named in ((codes.PRODUCE, {"partitions": partitions}), (codes.SIGNAL, {"keys": keys})):
        (names,) = named.values()
        if names:
            batch = OperationBatch(
                list(range(first, first + len(names))),
                item_indexes=list(range(len(names))),
                offsets=[9] * len(names),
                timeouts_ms=[600_000],
                **named,
            )
            served.host.registration(session).register([OperationRun(kind, batch)], [])
            first += len(names)


async def hot_names(served: ServedHost, limit: int = 0) -> list[tuple[int, tuple[str, int]]]:
    answer = await served.stub.ListHotNames(wire.ListHotNamesRequest(limit=limit))
    return [
        (one.watched, (one.key, -1) if one.key else (one.topic_partition.topic, one.topic_partition.partition))
        for one in answer.names
    ]


@pytest.mark.parametrize("seed", range(10))
async def test_most_watched_names_come_first_for_any_slice_size(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = random.Random(seed)
    monkeypatch.setattr(sizes, "HOT_NAMES_PER_SLICE", seeded.choice((1, 3, 100)))
    names = [(f"t{number}", seeded.randrange(3)) for number in range(15)] + [(f"k{number}", -1) for number in range(15)]
    counts = {name: seeded.randrange(6) for name in names}
    watched = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
    async with serving() as served:
        await served.high_watermark("cold", 1)
        watch(served, counts)
        assert await hot_names(served, 1_000) == watched
        few = await hot_names(served, 5)
        assert [count for count, _ in few] == [count for count, _ in watched[:5]]
        assert set(few) <= set(watched)
        await served.host.cancel_waits(names[0])
        assert names[0] not in {name for _, name in await hot_names(served, 1_000)}


HOUR_MS = 3_600_000


async def test_listing_has_20_names_unless_asked_for_more(served: ServedHost) -> None:
    watch(served, {("t", number): 1 for number in range(30)})
    assert len(await hot_names(served)) == 20


async def register(served: ServedHost, ids: range, topic: str) -> None:
    """Register waits of one session for an offset that is never reached."""
    for start in range(ids.start, ids.stop, 10_000):
        batch = produce_columns(range(start, min(start + 10_000, ids.stop)), topic, offset=1 << 40, timeout_ms=HOUR_MS)
        answer = await served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))
        assert not answer.receipt.refusals, answer


async def test_a_page_is_filled_wherever_the_matches_are(served: ServedHost) -> None:
    await register(served, range(1, 60_001), "orders")
    await register(served, range(60_001, 60_201), "rare")
    rare = operation_pb2.TopicPartition(topic="rare", partition=0)
    page = await served.stub.ListOperations(wire.ListOperationsRequest(topic_partition=rare, page_size=100))
    assert len(page.operations) == 100
    rest = await served.stub.ListOperations(
        wire.ListOperationsRequest(topic_partition=rare, page_size=200, page_token=page.next_page_token)
    )
    assert (len(rest.operations), rest.next_page_token) == (100, "")


async def test_page_shows_waits_as_long_as_there_are_any(served: ServedHost) -> None:
    ranked, account = RankedWaits(served.host), served.host.sessions.accounts.nobody
    await register(served, range(1, 151), "orders")
    assert len((await ranked.show(account, WaitsQuery()))["rows"]) == 50
    for first in (151, 301):
        await register(served, range(first, first + 150), "orders")
        await served.stub.Cancel(wire.CancelRequest(session_id="s", operation_ids=range(first - 150, first)))
        for order in ("left", "-waited"):
            rows = (await ranked.show(account, WaitsQuery(order=order)))["rows"]
            assert len(rows) == 50
            assert all(int(row["id"]) >= first for row in rows)


async def test_searches_of_one_account_leave_room_for_another(served: ServedHost) -> None:
    """It is repeated as often as if each account had a single one."""
    host = served.host
    ranked, bob, ann = RankedWaits(host), host.shares.accounts.of("bob"), host.shares.accounts.of("ann")
    host.shares.accounts.use_policy(lambda _: NONE, lambda _: AS_FOR_ALL)
    shares_most = 2 * ranked_waits.KEPT_MAX // 3
    async with ranked._ranking:
        busy = [
            asyncio.create_task(ranked.show(bob, WaitsQuery(search=f"s{number}"))) for number in range(shares_most + 2)
        ]
        mine = asyncio.create_task(ranked.show(ann, WaitsQuery(search="s1")))
        await eventually(lambda: len(ranked._kept) == shares_most + 1, "all are to be ranked")
    assert (await mine)["rows"] == []
    assert sum(one.done() for one in busy[:shares_most]) < shares_most, "it does not wait for all of the other account"
    for one in busy[shares_most:]:
        with pytest.raises(
            RpcError, match=f"{shares_most} different searches and orders are on display, {shares_most} of"
        ):
            await one
    await asyncio.gather(*busy[:shares_most])


class _WithHistogram(Listener):
    def metrics(self) -> Iterable[Metric]:
        times = HistogramMetricFamily("purgatory_journal_sync_seconds", "Times.")
        times.add_metric([], [("0.01", 3.0), ("0.1", 4.0), ("+Inf", 4.0)], 0.08)
        return [times]


async def test_the_page_shows_the_mean_of_a_histogram(served: ServedHost) -> None:
    served.host.listeners.append(_WithHistogram())
    shown = DaemonViews(served.host, Metrics()).now()
    assert shown["files"]["purgatory_journal_sync_seconds_mean"] == pytest.approx(0.02)


async def test_a_cancelled_computation_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an earlier answer could still be reused, a computation is cancelled: the next caller gets a new one."""
    monkeypatch.setattr(inspection_calls, "NOT_KEPT_S_MAX", -1.0)
    monkeypatch.setattr(inspection_calls, "KEPT_TIMES", 1_000_000_000)
    began: list[asyncio.Task[int]] = []
    hanging = asyncio.Event()
    is_hanging = False

    async def compute() -> int:
        task = asyncio.current_task()
        assert task is not None
        began.append(task)
        if is_hanging:
            hanging.set()
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        return len(began)

    shared = SingleFlight(compute)
    assert [await shared.get() for _ in range(2)] == [1, 1]
    shared._kept_until_s, is_hanging = 0.0, True
    waiting = asyncio.create_task(shared.get())
    await hanging.wait()
    shared._kept_until_s, is_hanging = float("inf"), False
    began[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await shared.get() == 3


async def test_a_failed_computation_is_not_reused() -> None:
    answers: list[Exception | int] = [ValueError("a fault"), 7]

    async def compute() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SingleFlight(compute)
    shared._kept_until_s = float("inf")
    with pytest.raises(ValueError, match="a fault"):
        await shared.get()
    assert await shared.get() == 7


# The live page.


NAME = ("orders", 3)
TIMEOUT = [600_000]


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
        call = served.stub.Wait(wire.WaitRequest(operation=signal(0, "job", timeout_ms=600_000)))
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
    """Each item of the success arm has a reason, those of the failure arm have none. Time passes during a picture."""
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
    """Changes of the wall clock have no effect; percentiles only cover the interval between two samples."""
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
        assert (picture["wait_p50"], picture["wait_p95"]) == ([3, None], [1_800_000, None])
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
