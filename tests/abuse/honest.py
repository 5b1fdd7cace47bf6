"""The client that judges a daemon under attack: 200 waits per second, each satisfied by an event of its own and, with
`makes_calls`, followed by a unary call that is never repeated.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
from purgatory_client import AsyncClient, Outcome

from purgatory.v1 import purgatory_service_pb2, purgatory_service_pb2_grpc

WAITS_PER_SECOND: Final = 200
PARTITIONS: Final = 10
NICENESS: Final = 10
"""Attacker and honest client have a lower priority than the daemon."""
TIMEOUT_S: Final = 20.0
"""A wait that is not satisfied by then is lost: its event was pushed immediately."""

Seen = tuple[float, float | str]
"""A wait: its start (seconds on the monotonic clock, which all processes share), and its latency in ms or error."""
Call = Callable[[], Awaitable[object]]


def bare_call(channel: grpc.aio.Channel, token: str) -> Call:
    """A call without our client, which would repeat one that the daemon resets."""
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
    request = purgatory_service_pb2.GetPartitionRequest(topic_partition={"topic": "honest"})
    return lambda: stub.GetPartition(request, metadata=(("authorization", f"Bearer {token}"),), timeout=TIMEOUT_S)


async def wait_once(client: AsyncClient, call: Call | None, number: int, seen: list[Seen]) -> None:
    """Register one wait, push the event that satisfies it, and make the call, if any."""
    partition, offset = f"honest-{number % PARTITIONS}", number // PARTITIONS + 1
    began_s = time.monotonic()
    try:
        wait = asyncio.ensure_future(client.produce({partition: offset}, timeout=TIMEOUT_S))
        await asyncio.sleep(0)  # let the wait be sent first
        await client.advance(partition, high_watermark=offset)
        result = await wait
        assert result.outcome is Outcome.SATISFIED, f"the wait ended as {result.outcome.name}"
        if call is not None:
            await call()
    except Exception as error:  # noqa: BLE001 - any error is a result of the honest caller
        seen.append((began_s, f"{type(error).__name__}: {error}"[:200]))
    else:
        seen.append((began_s, (time.monotonic() - began_s) * 1_000))


async def judge(
    address: str, token: str, ready: Callable[[], object], ended: asyncio.Future[Any], *, makes_calls: bool = False
) -> list[Seen]:
    """Call `ready` once connected, then wait at a steady rate, whatever the latency, until `ended` is done."""
    seen: list[Seen] = []
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with (
        AsyncClient(address, name="honest", token=token) as client,
        grpc.aio.insecure_channel(address, options=options) as channel,
    ):
        call = bare_call(channel, token) if makes_calls else None
        await client.status()
        ready()
        start_s, number = loop.time(), 0
        while not ended.done():
            task = asyncio.create_task(wait_once(client, call, number, seen))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(max(0.0, start_s + number / WAITS_PER_SECOND - loop.time()))
        await asyncio.gather(*tasks)
    return seen


def percentile(latencies_ms: list[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(latencies_ms)[int(len(latencies_ms) * share)] if latencies_ms else 0.0


def run(address: str, token: str, makes_calls: bool, pipe: Connection) -> None:
    """Judge until a message arrives on the pipe. Sends a message on it at the start, and the findings at the end."""
    os.nice(NICENESS)

    async def judged() -> list[Seen]:
        ended = asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        return await judge(address, token, lambda: pipe.send("ready"), ended, makes_calls=makes_calls)

    pipe.send(asyncio.run(judged()))
