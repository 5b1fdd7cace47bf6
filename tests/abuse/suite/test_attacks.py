"""A short run of each attack on a real daemon with a memory budget of 512 MB; and each flood's calls are served.

The latency of honest callers under attack is measured by `make abuse`.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from purgatory.v1 import purgatory_service_pb2
from tests.abuse.arena import Arena, run_attacker
from tests.abuse.floods import FLOODS, prepare
from tests.abuse.honest import judge
from tests.abuse.http2 import SERVICE, Call, Target, flood
from tests.abuse.result import MEMORY_MB_MAX, memory_mb, start_peak
from tests.kit.eventually import PATIENCE_S

pytestmark = pytest.mark.xdist_group("attacks")  # one daemon for all

METHODS = [method.name for method in purgatory_service_pb2.DESCRIPTOR.services_by_name["PurgatoryService"].methods]
SECONDS = 0.5
ANSWERS = {
    "rapid-reset": {"resets"},  # closing is tested in test_connections: a busy machine resets too few calls per second
    "burst": {"OK"},
    "unread-listings": {"OK", "unread"},
    "large-messages": {"RESOURCE_EXHAUSTED"},
    "compressed": {"RESOURCE_EXHAUSTED"},
    "fat-names": {"OK"},
    "flood-Session": {"OK", "closed", "started", "due"},
}
"""Attacks that take effect within a second or so, with the attacker's counts. `make abuse` runs all of them."""
FLOOD_CALLS_PER_SECOND = 10_000


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("attacks") / "arena") as arena:
        yield arena


def test_every_method_has_a_flood() -> None:
    """A new call of the service needs one in `floods.py`."""
    assert sorted(FLOODS) == sorted(METHODS)


@pytest.fixture(scope="module")
def target(arena: Arena) -> Target:
    """A daemon with the objects that the floods list."""
    target = arena.target(SECONDS)
    asyncio.run(prepare(target))
    return target


async def first_answer(target: Target, call: Call) -> grpc.StatusCode:
    """Return OK if the call was answered or ended without error, and its status otherwise."""
    method, bodies = call
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        # A stream that is refused while a message is being written ends with INTERNAL at gRPC's client.
        make: Any = (channel.unary_stream if len(bodies) == 1 else channel.stream_stream)(SERVICE + method)
        made = make(
            bodies[0] if len(bodies) == 1 else iter(bodies),
            metadata=(("authorization", f"Bearer {target.token}"),),
            timeout=30.0,
        )
        try:
            await made.read()
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS)
def test_calls_of_floods_are_served(target: Target, method: str) -> None:
    """Sent one by one, none is refused or malformed, so a flood costs the daemon what its method costs."""
    calls = [FLOODS[method](number) for number in (0, 1, 200, 201)]
    assert method in {name for name, _ in calls}
    statuses = {asyncio.run(first_answer(target, call)) for call in calls}
    leaving = {grpc.StatusCode.UNAVAILABLE} if method == "GetSourceEnds" else set()  # its source may have left
    # The flood's token is not an administrator's, so that no flood ends the daemon.
    served = grpc.StatusCode.PERMISSION_DENIED if method == "HandOver" else grpc.StatusCode.OK
    assert statuses - leaving == {served}


def test_a_flood_starts_calls_at_its_rate(target: Target) -> None:
    """All due calls are started, however long responses take, and each ends with some status."""
    tally = flood(target, FLOODS["GetPartition"], 200.0)
    started, due = tally.pop("started"), tally.pop("due")
    assert 0 < due <= 100
    assert started == due
    assert sum(tally.values()) == started


@pytest.mark.parametrize("name", ANSWERS)
async def test_honest_callers_lose_nothing(arena: Arena, name: str) -> None:
    """No honest wait fails, the daemon lives, its memory stays within bounds, and the attacker soon gets the answers
    that it should get.
    """
    start_peak(arena.daemon)
    ready, ended = asyncio.Event(), asyncio.get_running_loop().create_future()
    honest = asyncio.create_task(judge(arena.daemon.address, arena.honest_token, ready.set, ended))
    await ready.wait()
    tally = Counter[str]()
    async with asyncio.timeout(PATIENCE_S):
        while not tally.keys() >= ANSWERS[name]:  # on a busy machine, half a second may be too short
            tally += await run_attacker(name, arena.target(SECONDS), FLOOD_CALLS_PER_SECOND)
    ended.set_result(None)
    waits = await honest
    assert arena.daemon.process.poll() is None, arena.daemon.log[-3_000:]
    assert waits
    assert not [error for _, error in waits if isinstance(error, str)]
    assert memory_mb(arena.daemon, "VmHWM") <= MEMORY_MB_MAX
