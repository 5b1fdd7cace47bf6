"""Fills a daemon: parks waits in a session through unary calls, so that no stream needs to stay open."""

import time
import uuid
from typing import Final, cast

import grpc
from purgatory_client.session.channel import OPTIONS, open_channel
from purgatory_client.session.session_driver import Call

from bench.drivers.messages import HOUR_MS, acknowledgement, new_topic, opening, produce_batch
from bench.measure.worker import Numbers, measured, on_uvloop, resident_bytes, serve
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

BATCH: Final = 50_000


class Parking:
    """A session that registers produce waits in large batches and keeps track of them."""

    def __init__(self, stub: PurgatoryServiceStub, keys: int) -> None:
        self._stub: Final = stub
        self._keys: Final = keys
        self.session_id: Final = uuid.uuid4().hex
        self.topic: Final = new_topic()
        self.registered = 0

    def park(self, count: int, deadline_s: float | None = None) -> None:
        """Register `count` more waits, spread over the keys with increasing offsets; for an hour, or until a
        monotonic time.
        """
        for first in range(self.registered, self.registered + count, BATCH):
            numbers = range(first, min(first + BATCH, self.registered + count))
            timeout_ms = HOUR_MS if deadline_s is None else max(1, round((deadline_s - time.monotonic()) * 1_000))
            batch = produce_batch(
                self.topic,
                self._keys,
                [number + 1 for number in numbers],
                places=[number % self._keys for number in numbers],
                offsets=[number // self._keys + 1 for number in numbers],
                timeouts_ms=[timeout_ms],
            )
            receipt = self._stub.Register(wire.RegisterRequest(session_id=self.session_id, batch=batch)).receipt
            assert receipt.accepted == len(numbers), f"refused: {receipt.refusals[:1]}"
        self.registered += count


def park(address: str, count: int, keys: int, process_id: int = 0) -> Numbers:
    """Park `count` waits on `keys` partitions. With `process_id`, measure the memory per wait in that process."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        parking = Parking(PurgatoryServiceStub(channel), keys)
        parking.park(min(BATCH, count))
        before, parked_before = resident_bytes(process_id or None), parking.registered
        started = time.perf_counter()
        parking.park(count - parking.registered)
        seconds = time.perf_counter() - started
        resident = resident_bytes(process_id or None)
    parked = parking.registered - parked_before
    return {**measured(seconds, parked), "bytes": (resident - before) / max(1, parked), "resident": float(resident)}


@on_uvloop
async def herd(address: str, count: int, keys: int, deadline_s: float) -> Numbers:
    """`count` waits with one deadline, a time on the machine's monotonic clock. Measures from there to the last
    result.
    """
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        parking = Parking(PurgatoryServiceStub(channel), keys)
        parking.park(count, deadline_s)
    left_s = deadline_s - time.monotonic()
    assert left_s > 0, f"registering {count} took {-left_s:.1f} s too long; give a later deadline_s"
    ended = 0
    async with open_channel(address) as channel:
        call = cast("Call", PurgatoryServiceStub(channel).Session())
        await call.write(opening(parking.session_id))
        while ended < count:
            message = cast("wire.SessionResponse", await call.read())
            results = message.results.columns.operation_id
            assert not results or time.monotonic() >= deadline_s - 0.001, "a wait expired before its deadline"
            if results:
                ended += len(results)
                await call.write(acknowledgement(message.results))
        seconds = time.monotonic() - deadline_s
        call.cancel()
    return measured(seconds, count)


if __name__ == "__main__":
    serve({"park": park, "herd": herd})
