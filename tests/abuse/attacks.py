"""Attacks over gRPC, each bounded in count and time. They follow HTTP/2; `requests.raw_bytes` sends malformed bytes."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import grpc

from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.http2 import MEGABYTE, Call, Connection, Target, flood, message, until
from tests.abuse.result import Tally
from tests.kit.messages import advance_request, produce

TOPIC: Final = "attack"
CHANNELS: Final = 4
BELOW_LIMIT: Final = 4 * MEGABYTE - 1_024
"""Size of a message that no limit on single messages refuses, with a budget of 512 MB."""


Attack = Callable[[Target], Any]
"""Returns, perhaps as a coroutine, the number of responses by status, and other counts."""


class Timed(NamedTuple):
    attack: Attack
    seconds: float
    """How long it lasts in `make abuse`."""


ATTACKS: dict[str, Timed] = {}


class Attacker:
    """Channels to the daemon, and a count of the responses by status."""

    def __init__(self, address: str, token: str, channels: int = CHANNELS) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._channels: Final = [grpc.aio.insecure_channel(address, options=options) for _ in range(channels)]
        self.stubs: Final = [purgatory_service_pb2_grpc.PurgatoryServiceStub(channel) for channel in self._channels]
        self._metadata: Final = (("authorization", f"Bearer {token}"),) if token else ()
        self.tally: Tally = Counter()

    async def call(self, method: str, request: Any, number: int = 0, **options: Any) -> Any:  # noqa: ANN401 - of any type
        stub = self.stubs[number % len(self.stubs)]
        try:
            answer = await getattr(stub, method)(request, metadata=self._metadata, timeout=30.0, **options)
        except grpc.aio.AioRpcError as error:
            self.tally[error.code().name] += 1
            return None
        self.tally["OK"] += 1
        return answer

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def waits(ids: range, items: int = 1, timeout_ms: int = 5_000, topic: str = TOPIC) -> wire.RegisterBatch:
    """A batch of produce waits for an offset that is never reached."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE, operation_id=ids, timeout_ms=[timeout_ms], offset=[1 << 40],
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=number) for number in range(items)],
    )  # fmt: skip
    if items > 1:
        columns.item_count.extend([items] * len(ids))
        columns.item_index.extend(list(range(items)) * len(ids))
    return wire.RegisterBatch(batch_id=1, columns=columns)


def marks(count: int, first: int = 0, topic: str = TOPIC) -> wire.AdvanceRequest:
    columns = event_pb2.EventColumns(
        type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * count, offset=[1], item_index=range(count),
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=first + number) for number in range(count)],
    )  # fmt: skip
    return wire.AdvanceRequest(columns=columns)


def one_wait(timeout_ms: int = 60_000) -> wire.WaitRequest:
    return wire.WaitRequest(operation=produce(0, TOPIC, 1 << 40, timeout_ms))


Calls = Callable[[Attacker, Target], Awaitable[None]]


def attack(name: str, seconds: float, channels: int = CHANNELS) -> Callable[[Calls], None]:
    """Add an attack by calls, whose responses are counted."""

    def add(make_calls: Calls) -> None:
        async def run(target: Target) -> Tally:
            attacker = Attacker(target.grpc, target.token, channels)
            await make_calls(attacker, target)
            await attacker.close()
            return attacker.tally

        ATTACKS[name] = Timed(run, seconds)

    return add


@attack("burst", 4, channels=1)
async def burst(attacker: Attacker, target: Target) -> None:
    """2,000 unary calls at once on one channel, again and again: no call may be reset."""
    for _ in until(time.monotonic() + target.seconds):
        await asyncio.gather(*(attacker.call("Wait", one_wait(timeout_ms=50)) for _ in range(2_000)))
    assert not attacker.tally.keys() & {"UNAVAILABLE", "CANCELLED"}, attacker.tally


def unread_answers(target: Target, call: Call, calls: int) -> Tally:
    """Request large responses, none of which can be sent, and never read them."""
    connection = Connection(target.grpc, target.token, window=0)
    connection.until_read()
    started = sum(connection.start(call) for _ in range(calls))
    for _ in until(time.monotonic() + target.seconds):
        connection.exchange(0.05)
    connection.close()
    return Counter(unread=started)


@attack("unread-listings", 6, channels=1)
async def unread_listings(attacker: Attacker, target: Target) -> None:
    leadership = event_pb2.Leadership(is_leader=True, leader_id=1, replica_ids=range(300))
    for first in range(0, 1_000, 100):
        names = [operation_pb2.TopicPartition(topic=TOPIC, partition=number) for number in range(first, first + 100)]
        events = [event_pb2.Event(topic_partition=name, leader_epoch=1, leadership=leadership) for name in names]
        await attacker.call("Advance", advance_request(*events))
    request = wire.ListPartitionsRequest(page_size=1_000).SerializeToString()
    attacker.tally += await asyncio.to_thread(unread_answers, target, ("ListPartitions", (request,)), calls=60)


def rapid_reset(target: Target) -> Tally:
    """Open streams and reset each immediately, on one connection; reconnect when it is closed."""
    connection, done = Connection(target.grpc, target.token), Counter[str]()
    for _ in until(time.monotonic() + target.seconds):
        for _ in range(0 if connection.is_full else 200):
            connection.reset(connection.open("Wait"))
            done["resets"] += 1
        try:
            connection.exchange(0.001)
        except OSError:
            connection.close()
            connection = Connection(target.grpc, target.token)
            done["closed"] += 1
    connection.close()
    return done


def unfinished_messages(target: Target, *, length: int, streams: int, firsts: Sequence[tuple[str, bytes]]) -> Tally:
    """Send everything except the end of a message of `length` bytes on each of many streams.

    `firsts`: methods, used in turn, each with the message to send before the large one; b"": none.
    """
    connections = [Connection(target.grpc, target.token) for _ in range(5)]
    left: dict[tuple[Connection, int], int] = {}
    for number in range(streams):
        connection, (method, first) = connections[number % 5], firsts[number % len(firsts)]
        stream = connection.open(method)
        if first:
            whole = first.replace(b"NUMBER", f"{number:06}".encode())
            connection.write(stream, message(len(whole), whole))
        connection.write(stream, message(length))
        left[connection, stream] = length - 1
    filler, taken = bytes(1 << 14), 0
    for _ in until(time.monotonic() + target.seconds):
        for (connection, stream), rest in left.items():
            sent = connection.write(stream, filler[:rest])
            left[connection, stream] -= sent
            taken += sent
        # A server that is short of memory stops reading or closes the connection; the bytes until then are the result.
        with contextlib.suppress(OSError):
            for connection in connections:
                connection.exchange(0.001)
    for connection in connections:
        connection.close()
    return Counter(taken_mb=taken // MEGABYTE)


def first_of_streams() -> list[tuple[str, bytes]]:
    """Complete messages that open a session or push an event; the daemon may wait long for the message after them."""
    opening = wire.SessionRequest(open=wire.OpenSession(session_id="unfinished-NUMBER"))
    return [("Session", opening.SerializeToString()), ("AdvanceStream", marks(1).SerializeToString())]


@attack("large-messages", 6)
async def large_messages(attacker: Attacker, target: Target) -> None:
    """Messages of 32 MB at once: a hundred in six seconds."""
    request = wire.RegisterRequest(session_id="s" * (32 * MEGABYTE - 1_024))
    count = round(100 / 6 * target.seconds)
    await asyncio.gather(*(attacker.call("Register", request, number) for number in range(count)))


@attack("fat-names", 6)
async def fat_names(attacker: Attacker, target: Target) -> None:
    """Thousands of refusals per batch, each of which would quote a name of 100 kB."""
    batch = waits(range(1, 10_001), topic="f" * 100_000)
    for number, _ in zip(range(100), until(time.monotonic() + target.seconds), strict=False):
        await attacker.call("Register", wire.RegisterRequest(session_id=f"fat-{number}", batch=batch), number)


@attack("many-items", 8)
async def many_items(attacker: Attacker, target: Target) -> None:
    """Operations of 2,000 items; their results are never read."""
    for turn, _ in zip(range(400), until(time.monotonic() + target.seconds), strict=False):
        batch = waits(range(1 + 100 * (turn // 4), 101 + 100 * (turn // 4)), items=2_000, timeout_ms=turn % 2 * 60_000)
        await attacker.call("Register", wire.RegisterRequest(session_id=f"items-{turn % 4}", batch=batch), turn)


@attack("fill-up", 20)
async def fill_up(attacker: Attacker, target: Target) -> None:
    """Up to ten million operations, 100,000 partitions and 10,000 empty sessions."""
    deadline_s = time.monotonic() + target.seconds
    for first in range(0, 100_000, 10_000):
        await attacker.call("Advance", marks(10_000, first))
    for number, _ in zip(range(10_000), until(deadline_s - target.seconds / 2), strict=False):
        await attacker.call("Register", wire.RegisterRequest(session_id=f"e-{number}", batch=wire.RegisterBatch()))
    for turn, _ in enumerate(until(deadline_s)):
        batch = waits(range(1 + 100_000 * turn, 100_001 + 100_000 * turn), timeout_ms=600_000)
        await attacker.call("Register", wire.RegisterRequest(session_id="full", batch=batch))


@attack("compressed", 5)
async def compressed(attacker: Attacker, target: Target) -> None:
    """A hundred messages in five seconds that gzip compresses to a thousandth of their size."""
    request = wire.RegisterRequest(session_id="z" * (31 * MEGABYTE))
    gzip, count = grpc.Compression.Gzip, round(100 / 5 * target.seconds)
    await asyncio.gather(*(attacker.call("Register", request, number, compression=gzip) for number in range(count)))


def complete_calls(target: Target, method: str) -> Tally:
    """Calls without a credential: as many in flight as the daemon with 512 MB allows on eight connections."""
    call = (method, (b"",))
    tally = flood(target._replace(token=""), lambda _number: call, None, in_flight=2_800, may_be_cut=True)
    del tally["due"]
    return tally


ATTACKS |= {
    "rapid-reset": Timed(rapid_reset, 7),
    "unfinished-messages": Timed(
        partial(unfinished_messages, streams=50, length=31 * MEGABYTE, firsts=[("Register", b"")]), 6
    ),
    "unfinished-on-streams": Timed(
        partial(unfinished_messages, streams=200, length=BELOW_LIMIT, firsts=first_of_streams()), 6
    ),
    "no-credential": Timed(partial(complete_calls, method="GetStatus"), 6),
    "no-method": Timed(partial(complete_calls, method="GetNothing"), 6),
}
CALL_FLOODS: Final = ("no-credential", "no-method")
"""Floods that need no credential, so they also run against a daemon without a policy."""
