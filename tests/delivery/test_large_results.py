"""Results as large as they can be: a client with gRPC's default of 4 MiB reads each of them, and the ones after it."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from purgatory_client import events
from purgatory_client.aio import AsyncClient
from purgatory_client.results import PartitionResult

from purgatory import sizes
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX
from purgatory.service.settings import LimitsSettings
from purgatory.service.translate.sources import REASON_LENGTH_MAX
from purgatory.v1 import operation_pb2, source_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.delivery.paths import PATHS, ReadResult, read_results
from tests.kit.daemon import InProcessDaemon, RunDaemon
from tests.kit.eventually import eventually
from tests.kit.messages import produce, register_request, signal
from tests.kit.served_host import DaemonChannel

KEYS = [f"job-{number}" for number in range(1_100)]
VALUES = {key: key.encode().ljust(SIGNAL_VALUE_BYTES_MAX, b"-") for key in KEYS}
pytestmark = pytest.mark.slow  # megabytes
BY_EACH_PATH = pytest.mark.parametrize("path", PATHS)


async def signal_all(daemon: InProcessDaemon) -> None:
    """Signal each key with a value of its own, of the maximum length."""
    async with AsyncClient(daemon.address) as client:
        await client.advance_many([events.signalled(key, value=value) for key, value in VALUES.items()])


async def register(daemon: InProcessDaemon, *operations: operation_pb2.Operation) -> None:
    """Register rows in the session `s`."""
    async with DaemonChannel(daemon.address) as channel:
        await channel.stub.Register(register_request("s", *operations))


async def read(daemon: InProcessDaemon, path: str, count: int) -> list[ReadResult]:
    """Read the first results of the session `s`."""
    results: AsyncIterator[ReadResult] = read_results(daemon.address, daemon.http_address, path, "s")
    async with asyncio.timeout(60):
        return [await anext(results) for _ in range(count)]


def on_all_keys(operation_id: int) -> operation_pb2.Operation:
    condition = operation_pb2.Signal(keys=[operation_pb2.SignalKey(key=key) for key in KEYS])
    return operation_pb2.Operation(operation_id=operation_id, timeout_ms=0, signal=condition)


def check_values(items: list[PartitionResult]) -> list[str]:
    """Check that the values of the first keys are there. Return the keys whose values were left out."""
    assert [item.name for item in items] == KEYS
    left_out = [item.name for item in items if item.signal_value_left_out]
    assert 0 < len(left_out) < len(KEYS) // 2
    assert left_out == KEYS[-len(left_out) :], "values are kept in the order of the request"
    assert all(item.signal_value == (b"" if item.name in left_out else VALUES[item.name]) for item in items)
    return left_out


@BY_EACH_PATH
async def test_values_that_do_not_fit_into_a_result_are_left_out_and_marked(run_daemon: RunDaemon, path: str) -> None:
    daemon = await run_daemon()
    await signal_all(daemon)
    await register(daemon, on_all_keys(1), signal(2, KEYS[0], timeout_ms=0))
    large, small = await read(daemon, path, 2)
    left_out = check_values(large.items)
    assert (large.operation_id, small.operation_id, small.items[0].signal_value) == (1, 2, VALUES[KEYS[0]])
    async with AsyncClient(daemon.address) as client:
        rest = await client.signal(left_out, timeout=0)
        assert {item.name: item.signal_value for item in rest.items} == {key: VALUES[key] for key in left_out}
        assert check_values((await client.signal(KEYS, timeout=0)).items) == left_out


async def test_unary_wait_returns_as_much(run_daemon: RunDaemon) -> None:
    """Over gRPC with default limits, and over HTTP as JSON."""
    daemon = await run_daemon()
    await signal_all(daemon)
    async with DaemonChannel(daemon.address) as channel:
        answer = await channel.stub.Wait(wire.WaitRequest(operation=on_all_keys(1)))
    left_out = sum(item.signal_value_left_out for item in answer.result.partitions)
    assert 0 < left_out < len(KEYS) // 2
    request = {"operation": {"timeoutMs": 0, "signal": {"keys": [{"key": key} for key in KEYS]}}}
    async with (
        aiohttp.ClientSession(f"http://{daemon.http_address}") as http,
        http.post("/purgatory.v1.PurgatoryService/Wait", json=request) as told,
    ):
        items = (await told.json())["result"]["partitions"]
    assert [item.get("signalValueLeftOut", False) for item in items].count(True) == left_out


@BY_EACH_PATH
async def test_reasons_of_a_source_do_not_make_a_result_unreadable(run_daemon: RunDaemon, path: str) -> None:
    """Reasons that do not fit are left out, the times are not."""
    daemon = await run_daemon()
    reason = "\N{SNOWMAN}" * REASON_LENGTH_MAX
    async with DaemonChannel(daemon.address) as channel:
        source = channel.stub.AttachSource()
        hello = source_pb2.SourceHello(name="other", topic_prefixes=["t"])
        await source.write(source_pb2.AttachSourceRequest(hello=hello))
        stale = [source_pb2.StaleMarks(topic_prefix="t", stale_ms=5, reason=reason)]
        report = source_pb2.SourceReport(state=source_pb2.SOURCE_STATE_LIVE, stale=stale)
        await source.write(source_pb2.AttachSourceRequest(report=report))

        async def is_stale() -> bool:
            return any(listed.HasField("stale_ms") for listed in (await channel.status()).sources)

        await eventually(is_stale, "the report is taken")
        many = produce(1, "t", 1, timeout_ms=0)
        for partition in range(1, 2_000):
            many.produce.partitions.add(required_offset=1, topic_partition={"topic": "t", "partition": partition})
        await register(daemon, many, produce(2, "t", 1, timeout_ms=0))
        large, small = await read(daemon, path, 2)
        source.cancel()
    assert [item.stale_for is not None for item in large.items] == [True] * 2_000
    with_reason = [item.stale_reason for item in large.items].count(reason)
    assert 500 < with_reason < 2_000
    assert {item.stale_reason for item in large.items[with_reason:]} == {""}
    assert small.items[0].stale_reason == reason


@pytest.mark.parametrize(("items", "length", "fits"), [(2_000, 249, True), (2_926, 249, True), (2_927, 249, False)])
def test_settings_that_allow_a_larger_result_are_refused(items: int, length: int, fits: bool) -> None:
    wanted = {"items_per_operation_max": items, "topic_length_max": length}
    if fits:
        LimitsSettings(**wanted)
        return
    with pytest.raises(ValueError, match=rf"clients accept {sizes.MESSAGE_BYTES_MAX}: lower one of the two"):
        LimitsSettings(**wanted)
