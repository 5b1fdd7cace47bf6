"""Each call of the service has a flood, whose calls the daemon serves; and floods start what they say they start."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from purgatory.v1 import purgatory_service_pb2
from tests.hostile.arena import Arena
from tests.hostile.floods.flood_calls import FLOODS, prepare
from tests.hostile.floods.open_loop import Call, flood
from tests.hostile.raw_http2 import SERVICE

METHODS = [method.name for method in purgatory_service_pb2.DESCRIPTOR.services_by_name["PurgatoryService"].methods]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A daemon that knows what the attacker wants to list."""
    with Arena(tmp_path_factory.mktemp("floods") / "arena") as arena:
        asyncio.run(prepare(arena.daemon.address, arena.token))
        yield arena


def test_each_method_has_a_flood() -> None:
    """A new call of the service needs a flood in `floods/flood_calls.py`, so that `make hostile` judges it too."""
    assert sorted(FLOODS) == sorted(METHODS)


async def first_answer(address: str, token: str, call: Call) -> grpc.StatusCode:
    """OK once a call was answered or has ended well, and otherwise its status."""
    method, bodies = call

    async def messages() -> AsyncIterator[bytes]:
        for body in bodies:
            yield body

    async with grpc.aio.insecure_channel(address) as channel:
        metadata = (("authorization", f"Bearer {token}"),)
        multi: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(SERVICE + method)
        made = multi(messages(), metadata=metadata, timeout=30.0)
        try:
            async for _ in made:
                break
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS)
def test_calls_of_floods_are_served(arena: Arena, method: str) -> None:
    """One after the other they are neither refused nor wrong, so a flood costs the daemon what its method costs."""
    calls = [FLOODS[method](number) for number in (0, 1, 200, 201)]
    assert method in {name for name, _ in calls}
    statuses = {asyncio.run(first_answer(arena.daemon.address, arena.token, call)) for call in calls}
    leaving = {grpc.StatusCode.UNAVAILABLE} if method == "GetSourceEnds" else set()  # its source
    assert statuses - leaving == {grpc.StatusCode.OK}


def test_a_flood_starts_calls_at_its_rate(arena: Arena) -> None:
    """However long answers take: as many as are due, and each ends in some way."""
    tally = flood(arena.daemon.address, arena.token, FLOODS["GetPartition"], 0.5, 200.0)
    started, due = tally.pop("started"), tally.pop("due")
    assert 0 < due <= 100
    assert started == due
    assert sum(tally.values()) == started
