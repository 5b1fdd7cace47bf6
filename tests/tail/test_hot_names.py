"""The names with the most waits: all watched names in one order, found in slices."""

from __future__ import annotations

import random

import grpc
import pytest

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.service.translate.operations import OperationRun
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.served_host import ServedHost, refused, serving
from tests.scripts.engine_level import EngineLevel


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
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "limit"):
            await hot_names(served, -1)


def test_the_engine_walks_partitions_then_keys() -> None:
    assert EngineLevel().engine.inspection.hottest(0, 10, 0) == ([], -1)
    inspection = EngineLevel.played("produce 1..2 t-0@9", "produce 3 u-0@9", "await 4 k").engine.inspection
    assert inspection.hottest(0, 2, 0) == ([(2, ("t", 0)), (1, ("u", 0))], 2)
    assert inspection.hottest(0, 3, 1) == ([(2, ("t", 0))], -1)
    assert inspection.hottest(2, 1, 0) == ([(1, ("k", -1))], -1)
