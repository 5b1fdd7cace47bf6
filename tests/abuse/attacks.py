"""Attacks over gRPC, each bounded in count and time. They follow HTTP/2; `requests.raw_bytes` sends malformed bytes."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import grpc

from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse import http2
from tests.abuse.call_flood import complete_calls
from tests.abuse.http2 import MEGABYTE, Target
from tests.abuse.result import Tally
from tests.kit.messages import advance_request

TOPIC: Final = "attack"
CHANNELS: Final = 4
BELOW_LIMIT: Final = 4 * MEGABYTE - 1_024
"""Size of a message that no limit on single messages refuses, with a budget of 512 MB."""


Attack = Callable[[Target], Any]
"""Returns, perhaps as a coroutine, the number of responses by status, and other counts."""


class Attacker:
    """Channels to the daemon, and a count of the responses by status."""

    def __init__(self, address: str, token: str, channels: int = CHANNELS) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._channels: Final = [grpc.aio.insecure_channel(address, options=options) for _ in range(channels)]
        self.stubs: Final = [purgatory_service_pb2_grpc.PurgatoryServiceStub(channel) for channel in self._channels]
        self._metadata: Final = (("authorization", f"Bearer {token}"),) if token else ()
        self.tally: Final[Tally] = Counter()

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
    partition = operation_pb2.TopicPartition(topic=TOPIC, partition=0)
    item = operation_pb2.ProducePartition(topic_partition=partition, required_offset=1 << 40)
    condition = operation_pb2.Produce(partitions=[item])
    return wire.WaitRequest(operation=operation_pb2.Operation(timeout_ms=timeout_ms, produce=condition))


async def burst(target: Target) -> Tally:
    """2,000 unary calls at once on one channel, again and again: no call may be reset."""
    attacker = Attacker(target.grpc, target.token, channels=1)
    deadline_s = time.monotonic() + target.seconds
    while time.monotonic() < deadline_s:
        await asyncio.gather(*(attacker.call("Wait", one_wait(timeout_ms=50)) for _ in range(2_000)))
    await attacker.close()
    assert not attacker.tally.keys() & {"UNAVAILABLE", "CANCELLED"}, attacker.tally
    return attacker.tally


async def unread_listings(target: Target) -> Tally:
    attacker = Attacker(target.grpc, target.token, channels=1)
    for first in range(0, 1_000, 100):
        events = [
            event_pb2.Event(
                topic_partition=operation_pb2.TopicPartition(topic=TOPIC, partition=number),
                leader_epoch=1,
                leadership=event_pb2.Leadership(is_leader=True, leader_id=1, replica_ids=range(300)),
            )
            for number in range(first, first + 100)
        ]
        await attacker.call("Advance", advance_request(*events))
    await attacker.close()
    unread = partial(
        http2.unread_answers, target, calls=60, method="ListPartitions",
        request=wire.ListPartitionsRequest(page_size=1_000).SerializeToString(),
    )  # fmt: skip
    return attacker.tally + await asyncio.to_thread(unread)


def first_of_streams() -> list[tuple[str, bytes]]:
    """Complete messages that open a session or push an event; the daemon may wait long for the message after them."""
    opening = wire.SessionRequest(open=wire.OpenSession(session_id="unfinished-NUMBER"))
    return [("Session", opening.SerializeToString()), ("AdvanceStream", marks(1).SerializeToString())]


async def large_messages(target: Target) -> Tally:
    """Messages of 32 MB at once: a hundred in six seconds."""
    attacker = Attacker(target.grpc, target.token)
    request = wire.RegisterRequest(session_id="s" * (32 * MEGABYTE - 1_024))
    await asyncio.gather(
        *(attacker.call("Register", request, number) for number in range(round(100 / 6 * target.seconds)))
    )
    await attacker.close()
    return attacker.tally


async def fat_names(target: Target) -> Tally:
    """Thousands of refusals per batch, each of which would quote a name of 100 kB."""
    attacker = Attacker(target.grpc, target.token)
    batch = waits(range(1, 10_001), topic="f" * 100_000)
    requests = [wire.RegisterRequest(session_id=f"fat-{number}", batch=batch) for number in range(100)]
    deadline_s = time.monotonic() + target.seconds
    for number, request in enumerate(requests):
        await attacker.call("Register", request, number)
        if time.monotonic() > deadline_s:
            break
    await attacker.close()
    return attacker.tally


async def many_items(target: Target) -> Tally:
    """Operations of 2,000 items; their results are never read."""
    attacker = Attacker(target.grpc, target.token)
    deadline_s, turn = time.monotonic() + target.seconds, 0
    while time.monotonic() < deadline_s and turn < 400:
        batch = waits(range(1 + 100 * (turn // 4), 101 + 100 * (turn // 4)), items=2_000, timeout_ms=turn % 2 * 60_000)
        await attacker.call("Register", wire.RegisterRequest(session_id=f"items-{turn % 4}", batch=batch), turn)
        turn += 1
    await attacker.close()
    return attacker.tally


async def fill_up(target: Target) -> Tally:
    """Up to ten million operations, 100,000 partitions and 10,000 empty sessions."""
    attacker = Attacker(target.grpc, target.token)
    deadline_s = time.monotonic() + target.seconds
    for first in range(0, 100_000, 10_000):
        await attacker.call("Advance", marks(10_000, first))
    for number in range(10_000):
        await attacker.call("Register", wire.RegisterRequest(session_id=f"e-{number}", batch=wire.RegisterBatch()))
        if time.monotonic() > deadline_s - target.seconds / 2:
            break
    turn = 0
    while time.monotonic() < deadline_s:
        batch = waits(range(1 + 100_000 * turn, 100_001 + 100_000 * turn), timeout_ms=600_000)
        await attacker.call("Register", wire.RegisterRequest(session_id="full", batch=batch))
        turn += 1
    await attacker.close()
    return attacker.tally


async def compressed(target: Target) -> Tally:
    """A hundred messages in five seconds that gzip compresses to a thousandth of their size."""
    attacker = Attacker(target.grpc, target.token)
    request = wire.RegisterRequest(session_id="z" * (31 * MEGABYTE))
    gzip, count = grpc.Compression.Gzip, round(100 / 5 * target.seconds)
    await asyncio.gather(*(attacker.call("Register", request, number, compression=gzip) for number in range(count)))
    await attacker.close()
    return attacker.tally


class Timed(NamedTuple):
    attack: Attack
    seconds: float
    """How long it lasts in `make abuse`."""


ATTACKS: Final = {
    "rapid-reset": Timed(http2.rapid_reset, 7),
    "burst": Timed(burst, 4),
    "unread-listings": Timed(unread_listings, 6),
    "unfinished-messages": Timed(
        partial(http2.unfinished_messages, streams=50, length=31 * MEGABYTE, firsts=[("Register", b"")]), 6
    ),
    "unfinished-on-streams": Timed(
        partial(http2.unfinished_messages, streams=200, length=BELOW_LIMIT, firsts=first_of_streams()), 6
    ),
    "large-messages": Timed(large_messages, 6),
    "fat-names": Timed(fat_names, 6),
    "many-items": Timed(many_items, 8),
    "fill-up": Timed(fill_up, 20),
    "compressed": Timed(compressed, 5),
    "no-credential": Timed(partial(complete_calls, method="GetStatus"), 6),
    "no-method": Timed(partial(complete_calls, method="GetNothing"), 6),
}
CALL_FLOODS: Final = ("no-credential", "no-method")
"""Those that need no credential, so that they are also made at a daemon without a policy."""
