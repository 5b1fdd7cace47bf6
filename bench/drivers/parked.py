"""Fills a daemon: waits parked in a session by unary calls, with no stream that would have to be kept open."""

import time
import uuid
from collections.abc import Iterable
from typing import Final, cast

import grpc
import uvloop
from purgatory_client.session.channel import OPTIONS, open_channel
from purgatory_client.session.session_driver import Call

from bench.drivers.client import new_topic
from bench.drivers.unary import mark_request
from bench.measure.memory import resident_bytes
from bench.measure.worker import Numbers, Parameters, measured, serve
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

BATCH: Final = 50_000
HOUR_MS: Final = 3_600_000


class Parking:
    """A session that registers produce waits in large batches, and knows what it has registered."""

    def __init__(self, stub: PurgatoryServiceStub, topic: str, keys: int) -> None:
        self._stub: Final = stub
        self.session_id: Final = uuid.uuid4().hex
        self.topic: Final = topic
        self.keys: Final = keys
        self.registered = 0

    def park(self, count: int, deadline_s: float | None = None) -> None:
        """Registers so many more, spread over the keys, offsets rising; for an hour, or until a monotonic time."""
        for first in range(self.registered, self.registered + count, BATCH):
            numbers = range(first, min(first + BATCH, self.registered + count))
            timeout_ms = HOUR_MS if deadline_s is None else max(1, round((deadline_s - time.monotonic()) * 1_000))
            self._register(numbers, timeout_ms)
        self.registered += count

    def _register(self, numbers: Iterable[int], timeout_ms: int) -> None:
        keys = self.keys
        columns = operation_pb2.OperationColumns(
            kind=operation_pb2.OPERATION_KIND_PRODUCE,
            partitions=[operation_pb2.TopicPartition(topic=self.topic, partition=key) for key in range(keys)],
            operation_id=[number + 1 for number in numbers],
            item_index=[number % keys for number in numbers],
            offset=[number // keys + 1 for number in numbers],
            timeout_ms=[timeout_ms],
        )
        request = wire.RegisterRequest(session_id=self.session_id, batch=wire.RegisterBatch(columns=columns))
        receipt = self._stub.Register(request).receipt
        assert receipt.accepted == len(columns.operation_id), f"refused: {receipt.refusals[:1]}"


def park(parameters: Parameters) -> Numbers:
    """Parks `count` waits on `keys` partitions; with `process_id`, what each then takes of that process's memory."""
    count, keys = parameters.integer("count"), parameters.integer("keys")
    process_id = parameters.integer("process_id", 0)
    with grpc.insecure_channel(parameters.text("address"), options=OPTIONS) as channel:
        parking = Parking(PurgatoryServiceStub(channel), new_topic(), keys)
        parking.park(min(BATCH, count))
        before, parked_before = resident_bytes(process_id or None), parking.registered
        started = time.perf_counter()
        parking.park(count - parking.registered)
        seconds = time.perf_counter() - started
        resident = resident_bytes(process_id or None)
    parked = parking.registered - parked_before
    return {**measured(seconds, parked), "bytes": (resident - before) / max(1, parked), "resident": float(resident)}


def herd(parameters: Parameters) -> Numbers:
    """`count` waits with one same `deadline_s` (of the machine's monotonic clock): the time from it to the last
    result.
    """
    return uvloop.run(_herd(parameters))


async def _herd(parameters: Parameters) -> Numbers:
    count, keys = parameters.integer("count"), parameters.integer("keys")
    address, deadline_s = parameters.text("address"), parameters.number("deadline_s")
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        parking = Parking(PurgatoryServiceStub(channel), new_topic(), keys)
        parking.park(count, deadline_s)
    left_s = deadline_s - time.monotonic()
    assert left_s > 0, f"registering {count} took {-left_s:.1f} s too long; give a later deadline_s"
    async with open_channel(address) as channel:
        call = PurgatoryServiceStub(channel).Session()
        opening = wire.OpenSession(session_id=parking.session_id, columns=True)
        await call.write(wire.SessionRequest(open=opening))
        seconds = await _until_all(call, count, deadline_s)
        call.cancel()
    return measured(seconds, count)


async def _until_all(call: Call, count: int, deadline_s: float) -> float:
    """Reads results until there are so many; seconds from the deadline. Asserts that none came before it."""
    ended = 0
    while ended < count:
        message = cast("wire.SessionResponse", await call.read())
        results = message.results.columns.operation_id
        assert not results or time.monotonic() >= deadline_s - 0.001, "a wait expired before its deadline"
        if results:
            ended += len(results)
            acknowledgement = wire.AcknowledgeResults(sequence=message.results.first_sequence + len(results) - 1)
            await call.write(wire.SessionRequest(acknowledge=acknowledgement))
    return time.monotonic() - deadline_s


def complete(parameters: Parameters) -> Numbers:
    """Parks `count` more waits on a new topic in slices and completes each: does a full daemon still work?"""
    count, address = parameters.integer("count"), parameters.text("address")
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        stub = PurgatoryServiceStub(channel)
        topic = new_topic()
        parking = Parking(stub, topic, 1)
        started = time.perf_counter()
        while parking.registered < count:
            parking.park(1_000)
            receipt = stub.Advance(mark_request(topic, 0, parking.registered)).receipt
            assert receipt.ended_total == 1_000, f"{receipt.ended_total} were completed"
        return measured(time.perf_counter() - started, parking.registered)


if __name__ == "__main__":
    serve({"park": park, "herd": herd, "complete": complete})
