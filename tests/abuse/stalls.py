"""Single calls that could hold the event loop, each against its own daemon, and the longest stalls of each.

A stall is the processor time that the daemon's loop thread spends without a break, as reported by its own metric
`purgatory_longest_loop_hold_seconds`. The figures are not judged; `suite.test_slices` tests the slicing.
"""

import asyncio
import re
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grpc

from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc as rpc
from tests.abuse.result import Result, memory_mb
from tests.daemon_process import DaemonProcess

PRODUCE: Final = operation_pb2.OPERATION_KIND_PRODUCE
LONGEST: Final = re.compile(r'^purgatory_longest_loop_hold_seconds\{call="([^"]+)"\} (\S+)$', re.MULTILINE)
OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
SESSION: Final = "stalls"
TIMEOUT_MS: Final = 3_600_000

Stub = rpc.PurgatoryServiceStub


def names(count: int) -> list[operation_pb2.TopicPartition]:
    return [operation_pb2.TopicPartition(topic="orders", partition=place) for place in range(count)]


async def register(
    stub: Stub, first_id: int, count: int, items: int, *, offset: int = 1_000, session: str = SESSION
) -> wire.Receipt:
    """Register operations that all name the same partitions."""
    columns = operation_pb2.OperationColumns(
        kind=PRODUCE,
        partitions=names(items),
        operation_id=range(first_id, first_id + count),
        item_count=[items],
        item_index=[] if items == 1 else list(range(items)) * count,
        offset=[offset],
        timeout_ms=[TIMEOUT_MS],
    )
    request = wire.RegisterRequest(session_id=session, batch=wire.RegisterBatch(columns=columns))
    response: wire.RegisterResponse = await stub.Register(request)
    return response.receipt


async def fill(stub: Stub, operations: int, items: int = 1) -> None:
    """Register `operations` pending operations, in as many batches as the limits require."""
    per_batch = min(operations, 100_000, max(1, 400_000 // items))
    for first in range(1, operations + 1, per_batch):
        receipt = await register(stub, first, min(per_batch, operations + 1 - first), items)
        assert receipt.accepted > 0, receipt


async def advance(stub: Stub, events: Iterable[event_pb2.Event]) -> wire.AdvanceReceipt:
    request = wire.AdvanceRequest(rows=event_pb2.EventRows(events=events))
    response: wire.AdvanceResponse = await stub.Advance(request)
    return response.receipt


async def read_results(stub: Stub, count: int, *, columns: bool) -> None:
    """Read `count` results of the session and acknowledge them, as a slow but honest reader does."""
    call = stub.StreamResults(wire.StreamResultsRequest(session_id=SESSION, columns=columns))
    read = 0
    while read < count:
        results = (await call.read()).results
        read += len(results.columns.operation_id) if columns else len(results.rows.results)
    call.cancel()


async def read_pages(
    call: Callable[[Any], Awaitable[Any]],
    request: wire.ListPartitionsRequest | wire.ListOperationsRequest,
    pages_max: int = 1_000_000,
) -> None:
    """Read the pages of a listing up to its end."""
    for _ in range(pages_max):
        request.page_token = (await call(request)).next_page_token
        if not request.page_token:
            return


async def large_results(stub: Stub) -> None:
    """A reader of rows, and 200 results of 2,000 partitions."""
    await fill(stub, 200, 2_000)
    await stub.Cancel(wire.CancelRequest(session_id=SESSION))
    await read_results(stub, 200, columns=False)


async def decided_already(stub: Stub) -> None:
    """Operations of 2,000 items that are already satisfied when they are registered."""
    high = event_pb2.HighWatermark(offset=2_000)
    await advance(stub, [event_pb2.Event(topic_partition=name, high_watermark=high) for name in names(2_000)])
    for first in range(1, 1_000, 200):
        receipt = await register(stub, first, 200, 2_000)
        assert receipt.accepted > 0, receipt


async def replica_sets(stub: Stub) -> None:
    """1,000 changes of an in-sync set of 999 replicas."""
    ids = list(range(1, 1_000))
    one = event_pb2.Event(
        topic_partition=names(1)[0], in_sync_replicas=event_pb2.InSyncReplicas(replica_ids=ids, leader_id=1)
    )
    two = event_pb2.Event(topic_partition=names(1)[0], in_sync_replicas=event_pb2.InSyncReplicas(replica_ids=ids[1:]))
    for _ in range(4):
        await advance(stub, [one, two] * 125)


async def used_names(stub: Stub) -> None:
    """As many names as a batch may have operations, each used once."""
    columns = operation_pb2.OperationColumns(
        kind=PRODUCE, partitions=names(90_000), operation_id=range(1, 90_001), item_index=range(90_000)
    )
    await stub.Register(wire.RegisterRequest(session_id=SESSION, batch=wire.RegisterBatch(columns=columns)))


async def refused(stub: Stub) -> None:
    """100,000 operations that are refused one by one."""
    columns = operation_pb2.OperationColumns(
        kind=PRODUCE, partitions=names(1), operation_id=range(1, 100_001), offset=[-5]
    )
    await stub.Register(wire.RegisterRequest(session_id=SESSION, batch=wire.RegisterBatch(columns=columns)))


async def list_many_partitions(stub: Stub) -> None:
    """List ten pages of 90,000 partitions."""
    high = event_pb2.HighWatermark(offset=1)
    all_names = names(90_000)
    for first in range(0, 90_000, 30_000):
        await advance(
            stub,
            [event_pb2.Event(topic_partition=name, high_watermark=high) for name in all_names[first : first + 30_000]],
        )
    await read_pages(stub.ListPartitions, wire.ListPartitionsRequest(page_size=1_000), pages_max=10)


async def list_operations(stub: Stub) -> None:
    """List pages of operations with 2,000 items each."""
    await fill(stub, 200, 2_000)
    await read_pages(stub.ListOperations, wire.ListOperationsRequest(page_size=1_000))


async def cancel_a_million(stub: Stub) -> None:
    """Cancel a million operations of a session."""
    await fill(stub, 1_000_000)
    await stub.Cancel(wire.CancelRequest(session_id=SESSION))


async def end_a_million(stub: Stub) -> None:
    """One event that satisfies all waits of a partition: its effects are not split into slices."""
    await fill(stub, 1_000_000)
    high = event_pb2.HighWatermark(offset=2_000)
    await advance(stub, [event_pb2.Event(topic_partition=names(1)[0], high_watermark=high)])


async def count_remaining(stub: Stub) -> None:
    """300 callers at once request the remaining time of a million operations."""
    await fill(stub, 1_000_000)
    await asyncio.gather(*[stub.GetStatus(wire.GetStatusRequest(remaining_time=True)) for _ in range(300)])


STALLS: Final[dict[str, Callable[[Stub], Awaitable[None]]]] = {
    f"stall-{attack.__name__.replace('_', '-')}": attack
    for attack in (
        large_results, decided_already, replica_sets, used_names, refused, list_many_partitions, list_operations,
        cancel_a_million, count_remaining, end_a_million,
    )
}  # fmt: skip


def stall(name: str, folder: Path) -> Result:
    """Run one of `STALLS` against a new daemon. A call that fails is a fault."""
    result = Result(name)

    async def run() -> None:
        async with grpc.aio.insecure_channel(daemon.address, options=OPTIONS) as channel:
            await STALLS[name](Stub(channel))

    daemon = DaemonProcess(folder, ["--grpc-message-bytes-max", str(32 * 1024 * 1024)])
    try:
        result.memory_before_mb = round(memory_mb(daemon))
        try:
            asyncio.run(run())
        except grpc.aio.AioRpcError as error:
            result.faults.append(f"{error.code().name}: {error.details()}")
        result.memory_peak_mb = round(memory_mb(daemon))
        page = urllib.request.urlopen(f"http://{daemon.http_address}/metrics", timeout=10).read().decode()
    finally:
        daemon.kill()
    longest = sorted(LONGEST.findall(page), key=lambda found: -float(found[1]))[:3]
    result.figures = ", ".join(f"{call} {float(seconds) * 1_000:.1f} ms" for call, seconds in longest)
    return result
