"""The attacks, each a bounded program of its own: `python -m tests.hostile.attackers NAME ADDRESS HTTP SECONDS TOKEN`.

Prints a line of JSON: what was done, and the statuses of what was answered. Attackers mean harm but follow HTTP/2; the
ports get bytes of no shape in `tests.fuzz`.
"""

import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc

from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.fuzz.raw_bytes import PREFACE, SETTINGS
from tests.hostile import raw_http2
from tests.hostile.http_attackers import HTTP_ATTACKS

TOPIC: Final = "attack"
CHANNELS: Final = 4
MEGABYTE: Final = 1024 * 1024
BELOW_LIMIT: Final = 4 * MEGABYTE - 1_024
"""A message that no limit on one message refuses, with a budget of 512 MB."""
Tally = Counter[str]
Attack = Callable[[str, str, float, str], Coroutine[Any, Any, Tally]]


class Attacker:
    """Channels to the daemon, and a count of the answers by status."""

    def __init__(self, address: str, token: str, channels: int = CHANNELS) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._channels: Final = [grpc.aio.insecure_channel(address, options=options) for _ in range(channels)]
        self.stubs: Final = [purgatory_service_pb2_grpc.PurgatoryServiceStub(channel) for channel in self._channels]
        self._metadata: Final = (("authorization", f"Bearer {token}"),) if token else ()
        self.tally: Final[Tally] = Counter()

    async def call(self, method: str, request: Any, number: int = 0, **options: Any) -> Any:  # noqa: ANN401 - of any type
        """One call; its status is counted."""
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
    """A batch of produce waits for what never comes."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE, operation_id=ids, timeout_ms=[timeout_ms], offset=[1 << 40],
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=number) for number in range(items)],
    )  # fmt: skip
    if items > 1:
        columns.item_count.extend([items] * len(ids))
        columns.item_index.extend(list(range(items)) * len(ids))
    return wire.RegisterBatch(batch_id=1, columns=columns)


def marks(count: int, first: int = 0, topic: str = TOPIC) -> wire.AdvanceRequest:
    """High watermarks of as many partitions."""
    columns = event_pb2.EventColumns(
        type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * count, offset=[1], item_index=range(count),
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=first + number) for number in range(count)],
    )  # fmt: skip
    return wire.AdvanceRequest(columns=columns)


def one_wait(timeout_ms: int = 60_000) -> wire.WaitRequest:
    partition = operation_pb2.TopicPartition(topic=TOPIC, partition=0)
    item = operation_pb2.ProducePartition(topic_partition=partition, required_offset=1 << 40)
    condition = operation_pb2.Produce(partitions=[item])
    return wire.WaitRequest(operation=operation_pb2.Operation(timeout_ms=timeout_ms, produce=condition))


async def rapid_reset(address: str, _http: str, seconds: float, token: str) -> Tally:
    return await asyncio.to_thread(raw_http2.rapid_reset, address, token, seconds)


async def unary_waits(address: str, _http: str, seconds: float, token: str) -> Tally:
    """50,000 calls of Wait on one connection."""
    attacker = Attacker(address, token, channels=1)
    calls = [asyncio.ensure_future(attacker.call("Wait", one_wait())) for _ in range(50_000)]
    await asyncio.sleep(seconds)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await attacker.close()
    return attacker.tally


async def burst(address: str, _http: str, seconds: float, token: str) -> Tally:
    """2,000 unary calls at once on one channel, again and again: no call may be reset."""
    attacker = Attacker(address, token, channels=1)
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        await asyncio.gather(*(attacker.call("Wait", one_wait(timeout_ms=50)) for _ in range(2_000)))
    await attacker.close()
    assert not attacker.tally.keys() & {"UNAVAILABLE", "CANCELLED"}, attacker.tally
    return attacker.tally


async def idle_connections(address: str, _http: str, seconds: float, _token: str) -> Tally:
    """1,300 gRPC connections that send nothing but HTTP/2's preface."""
    return await connections_held(address, PREFACE + SETTINGS, 1_300, seconds)


async def unread_listings(address: str, _http: str, seconds: float, token: str) -> Tally:
    attacker = Attacker(address, token, channels=1)
    for first in range(0, 1_000, 100):
        events = [
            event_pb2.Event(
                topic_partition=operation_pb2.TopicPartition(topic=TOPIC, partition=number),
                leader_epoch=1,
                leadership=event_pb2.Leadership(is_leader=True, leader_id=1, replica_ids=range(300)),
            )
            for number in range(first, first + 100)
        ]
        await attacker.call("Advance", wire.AdvanceRequest(rows=event_pb2.EventRows(events=events)))
    await attacker.close()
    request = wire.ListPartitionsRequest(page_size=1_000).SerializeToString()
    unread = await asyncio.to_thread(
        raw_http2.unread_answers, address, token, seconds, calls=60, method="ListPartitions", request=request
    )
    return attacker.tally + Counter(unread=unread)


def unfinished(streams: int, length: int, firsts: Callable[[], list[tuple[str, bytes]]]) -> Attack:
    """Messages of so many bytes, never finished; `firsts` as in `raw_http2`."""

    async def attack(address: str, _http: str, seconds: float, token: str) -> Tally:
        taken = await asyncio.to_thread(
            raw_http2.unfinished_messages, address, token, seconds, length=length, streams=streams, firsts=firsts()
        )
        return Counter(taken_mb=taken // MEGABYTE)

    return attack


def first_of_streams() -> list[tuple[str, bytes]]:
    """Opens a session, or pushes an event: whole messages, after which others may take their time."""
    opening = wire.SessionRequest(open=wire.OpenSession(session_id="unfinished-NUMBER"))
    return [("Session", opening.SerializeToString()), ("AdvanceStream", marks(1).SerializeToString())]


async def large_messages(address: str, _http: str, seconds: float, token: str) -> Tally:
    """Messages of 32 MB at once: a hundred in six seconds."""
    attacker = Attacker(address, token)
    request = wire.RegisterRequest(session_id="s" * (32 * MEGABYTE - 1_024))
    await asyncio.gather(*(attacker.call("Register", request, number) for number in range(round(100 / 6 * seconds))))
    await attacker.close()
    return attacker.tally


async def fat_names(address: str, _http: str, seconds: float, token: str) -> Tally:
    """Refusals that would quote a name of 100 kB, thousands in a batch."""
    attacker = Attacker(address, token)
    batch = waits(range(1, 10_001), topic="f" * 100_000)
    requests = [wire.RegisterRequest(session_id=f"fat-{number}", batch=batch) for number in range(100)]
    deadline_s = time.monotonic() + seconds
    for number, request in enumerate(requests):
        await attacker.call("Register", request, number)
        if time.monotonic() > deadline_s:
            break
    await attacker.close()
    return attacker.tally


async def many_items(address: str, _http: str, seconds: float, token: str) -> Tally:
    """Operations of 2,000 items, whose results nobody reads."""
    attacker = Attacker(address, token)
    deadline_s, turn = time.monotonic() + seconds, 0
    while time.monotonic() < deadline_s and turn < 400:
        batch = waits(range(1 + 100 * (turn // 4), 101 + 100 * (turn // 4)), items=2_000, timeout_ms=turn % 2 * 60_000)
        await attacker.call("Register", wire.RegisterRequest(session_id=f"items-{turn % 4}", batch=batch), turn)
        turn += 1
    await attacker.close()
    return attacker.tally


async def fill_up(address: str, _http: str, seconds: float, token: str) -> Tally:
    """Ten million operations, 100,000 partitions and 10,000 empty sessions."""
    attacker = Attacker(address, token)
    deadline_s = time.monotonic() + seconds
    for first in range(0, 100_000, 10_000):
        await attacker.call("Advance", marks(10_000, first))
    for number in range(10_000):
        await attacker.call("Register", wire.RegisterRequest(session_id=f"e-{number}", batch=wire.RegisterBatch()))
        if time.monotonic() > deadline_s - seconds / 2:
            break
    turn = 0
    while time.monotonic() < deadline_s:
        batch = waits(range(1 + 100_000 * turn, 100_001 + 100_000 * turn), timeout_ms=600_000)
        await attacker.call("Register", wire.RegisterRequest(session_id="full", batch=batch))
        turn += 1
    await attacker.close()
    return attacker.tally


async def half_open_http(_address: str, http: str, seconds: float, _token: str) -> Tally:
    """1,000 HTTP requests that are never finished."""
    return await connections_held(http, b"GET /metrics HTTP/1.1\r\nHost: x\r\n", 1_000, seconds)


async def connections_held(address: str, first: bytes, count: int, seconds: float) -> Tally:
    """Opens connections, sends these bytes on each, and holds them."""
    host, _, port = address.rpartition(":")
    held, refused = [], 0
    for _ in range(count):
        try:
            connection = socket.create_connection((host, int(port)), 2.0)
            connection.sendall(first)
            held.append(connection)
        except OSError:
            refused += 1
    await asyncio.sleep(seconds)
    for connection in held:
        connection.close()
    return Counter(held=len(held), refused=refused)


async def metrics_readers(_address: str, http: str, seconds: float, _token: str) -> Tally:
    """/metrics on four keep-alive connections, without pause."""
    host, _, port = http.rpartition(":")
    deadline_s = time.monotonic() + seconds

    def read() -> int:
        with socket.create_connection((host, int(port)), 10.0) as connection:
            connection.settimeout(10.0)
            pages = 0
            while time.monotonic() < deadline_s:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                connection.recv(1 << 20)
                pages += 1
            return pages

    return Counter(pages=sum(await asyncio.gather(*(asyncio.to_thread(read) for _ in range(4)))))


async def compressed(address: str, _http: str, seconds: float, token: str) -> Tally:
    """Messages that gzip makes a thousandth of their size, at once: a hundred in five seconds."""
    attacker = Attacker(address, token)
    request = wire.RegisterRequest(session_id="z" * (31 * MEGABYTE))
    gzip, count = grpc.Compression.Gzip, round(100 / 5 * seconds)
    await asyncio.gather(*(attacker.call("Register", request, number, compression=gzip) for number in range(count)))
    await attacker.close()
    return attacker.tally


ATTACKS: Final[dict[str, Attack]] = {
    "rapid-reset": rapid_reset,
    "unary-waits": unary_waits,
    "burst": burst,
    "idle-connections": idle_connections,
    "unread-listings": unread_listings,
    "unfinished-messages": unfinished(50, 31 * MEGABYTE, lambda: [("Register", b"")]),
    "unfinished-smaller": unfinished(200, BELOW_LIMIT, lambda: [("Register", b"")]),
    "unfinished-on-streams": unfinished(200, BELOW_LIMIT, first_of_streams),
    "large-messages": large_messages,
    "fat-names": fat_names,
    "many-items": many_items,
    "fill-up": fill_up,
    "half-open-http": half_open_http,
    "metrics": metrics_readers,
    "compressed": compressed,
    **HTTP_ATTACKS,
}


def main(arguments: list[str]) -> None:
    name, address, http, seconds, token = arguments
    print(json.dumps(asyncio.run(ATTACKS[name](address, http, float(seconds), token))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
