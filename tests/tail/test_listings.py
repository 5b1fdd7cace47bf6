"""Listings: the names with the most waits, rankings and searches of operations, and answers that callers share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.extensions.page import ranked_waits
from purgatory.extensions.page.daemon_views import DaemonViews
from purgatory.extensions.page.ranked_waits import RankedWaits, WaitsQuery
from purgatory.service.access.account import AS_FOR_ALL
from purgatory.service.access.roles import NONE
from purgatory.service.errors import RpcError
from purgatory.service.listeners.listener import Listener
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc import single_flight
from purgatory.service.rpc.single_flight import SingleFlight
from purgatory.service.translate.operations import OperationRun
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.served_host import ServedHost, serving


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


async def test_listing_has_20_names_unless_asked_for_more() -> None:
    async with serving() as served:
        watch(served, {("t", number): 1 for number in range(30)})
        assert len(await hot_names(served)) == 20


HOUR_MS = 3_600_000
ALL = wire.OperationOrder


@pytest.fixture
async def served() -> AsyncIterator[ServedHost]:
    """A host without limits that matter here."""
    async with serving() as host:
        yield host


async def register(served: ServedHost, ids: range, topic: str, timeout_ms: int) -> None:
    """Register waits of one session for an offset that is never reached."""
    for start in range(ids.start, ids.stop, 10_000):
        part = range(start, min(start + 10_000, ids.stop))
        columns = operation_pb2.OperationColumns(
            kind=operation_pb2.OPERATION_KIND_PRODUCE, operation_id=part, timeout_ms=[timeout_ms], offset=[1 << 40],
            partitions=[operation_pb2.TopicPartition(topic=topic, partition=0)],
        )  # fmt: skip
        batch = wire.RegisterBatch(columns=columns)
        answer = await served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))
        assert answer.receipt.accepted == len(part), answer


async def ids_of(served: ServedHost, **request: Any) -> tuple[list[int], int]:  # noqa: ANN401 - fields of a message
    answer = await served.stub.ListOperations(wire.ListOperationsRequest(**request))
    assert not answer.next_page_token
    return [one.operation_id for one in answer.operations], answer.matching


async def test_orders_rank_everything_that_is_pending(served: ServedHost) -> None:
    await register(served, range(1, 4_001), "orders", HOUR_MS)
    await register(served, range(4_001, 4_006), "urgent-payments", 60_000)
    least, longest = ALL.Value("OPERATION_ORDER_LEAST_REMAINING"), ALL.Value("OPERATION_ORDER_LONGEST_WAITED")
    most, shortest = ALL.Value("OPERATION_ORDER_MOST_REMAINING"), ALL.Value("OPERATION_ORDER_SHORTEST_WAITED")
    urgent = set(range(4_001, 4_006))
    found, matching = await ids_of(served, order=least, page_size=5)
    assert (set(found), matching) == (urgent, 4_005)
    found, matching = await ids_of(served, order=shortest, search="URGENT-payments-0")
    assert (set(found), matching) == (urgent, 5)
    found, matching = await ids_of(served, order=longest, page_size=1_000)
    assert (len(found), matching) == (1_000, 4_005)
    assert not urgent & set(found)
    assert not urgent & set((await ids_of(served, order=most, page_size=1_000))[0])
    other = operation_pb2.TopicPartition(topic="urgent-payments", partition=0)
    assert set((await ids_of(served, order=most, topic_partition=other))[0]) == urgent
    assert await ids_of(served, order=most, key="none") == ([], 0)


async def test_a_page_is_filled_wherever_the_matches_are(served: ServedHost) -> None:
    await register(served, range(1, 60_001), "orders", HOUR_MS)
    await register(served, range(60_001, 60_201), "rare", HOUR_MS)
    rare = operation_pb2.TopicPartition(topic="rare", partition=0)
    page = await served.stub.ListOperations(wire.ListOperationsRequest(topic_partition=rare, page_size=100))
    assert len(page.operations) == 100
    rest = await served.stub.ListOperations(
        wire.ListOperationsRequest(topic_partition=rare, page_size=200, page_token=page.next_page_token)
    )
    assert (len(rest.operations), rest.next_page_token) == (100, "")


async def test_the_page_shows_waits_as_long_as_there_are_any(served: ServedHost) -> None:
    ranked, account = RankedWaits(served.host), served.host.sessions.accounts.nobody
    await register(served, range(1, 151), "orders", HOUR_MS)
    assert len((await ranked.show(account, WaitsQuery()))["rows"]) == 50
    for first in (151, 301):
        await register(served, range(first, first + 150), "orders", HOUR_MS)
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
    monkeypatch.setattr(single_flight, "NOT_KEPT_S_MAX", -1.0)
    monkeypatch.setattr(single_flight, "KEPT_TIMES", 1_000_000_000)
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
