"""Loads a daemon with the requests of bench/subjects/request_load.py, over one session and one stream of events."""

import asyncio
import os
from pathlib import Path
from typing import Final, cast

from purgatory_client.session.channel import open_channel
from purgatory_client.session.session_driver import Call

from bench.drivers.messages import TIMEOUT_MS, acknowledgement, new_topic, opening, partitions_of
from bench.measure.worker import Numbers, on_uvloop, serve
from bench.subjects.request_load import EACH, Load, Turn, draw, run
from purgatory.service.budget import garbage
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

IN_FLIGHT: Final = 20
"""Batches sent before their receipts: enough to keep the daemon busy, and less than it holds for a session."""


class Requests:
    """One session that registers what arrives, and reports the marks that end it."""

    def __init__(self, stub: PurgatoryServiceStub, topic: str, keys: int, load: Load) -> None:
        self._session: Final = cast("Call", stub.Session())
        self._events: Final = stub.AdvanceStream()
        self._topic: Final = topic
        self._names: Final = partitions_of(topic, keys)
        self._load: Final = load
        self._writing: Final = asyncio.Lock()
        self._unanswered: Final = {"batches": asyncio.Semaphore(IN_FLIGHT), "events": asyncio.Semaphore(IN_FLIGHT)}

    async def run(self) -> None:
        await self._session.write(opening(self._topic))
        await self._session.read()
        reading = [asyncio.create_task(self._read()), asyncio.create_task(self._read_answers())]
        await run(self._load, self._perform)
        await self._events.done_writing()
        await asyncio.gather(*reading)
        await self._session.done_writing()

    async def _perform(self, turn: Turn) -> None:
        if turn.marks:
            count = len(turn.marks)
            marks = event_pb2.EventColumns(
                partitions=self._names,
                type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * count,
                item_index=turn.marked,
                offset=turn.marks,
            )
            await self._unanswered["events"].acquire()
            await self._events.write(wire.AdvanceStreamRequest(columns=marks))
        if turn.required:
            columns = operation_pb2.OperationColumns(
                kind=operation_pb2.OPERATION_KIND_COMPOSITE,
                partitions=self._names,
                operation_id=range(turn.first + 1, turn.first + 1 + len(turn.required)),
                item_index=turn.keys,
                item_count=[EACH],
                offset=[due_us for due_us in turn.required for _ in range(EACH)],
                required_terms=[1],
                timeout_ms=[TIMEOUT_MS],
            )
            await self._unanswered["batches"].acquire()
            await self._write(wire.SessionRequest(register=wire.RegisterBatch(columns=columns)))

    async def _write(self, message: wire.SessionRequest) -> None:
        """Write one message at a time, as gRPC requires."""
        async with self._writing:
            await self._session.write(message)

    async def _read(self) -> None:
        """Read receipts and results until all requests have ended."""
        while self._load.has_more:
            message = cast("wire.SessionResponse", await self._session.read())
            if message.HasField("receipt"):
                assert not message.receipt.refusals, f"refused: {message.receipt.refusals[0]}"
                self._unanswered["batches"].release()
            elif message.HasField("results"):
                self._load.ended([number - 1 for number in message.results.columns.operation_id])
                await self._write(acknowledgement(message.results))

    async def _read_answers(self) -> None:
        async for _ in self._events:
            self._unanswered["events"].release()


def cpu_s(process_id: int) -> float:
    """Processor time that a process has taken."""
    words = Path(f"/proc/{process_id}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@on_uvloop
async def requests(
    address: str, process_id: int, rate: float, count: int, keys: int, p50_ms: float, p75_ms: float
) -> Numbers:
    """The load at a daemon; its processor time for each request is that of the process `process_id`."""
    garbage.tune()
    draws = draw(count, keys, rate, p50_ms, p75_ms)
    async with open_channel(address) as channel:
        began_s = cpu_s(process_id)
        load = Load(draws)
        await Requests(PurgatoryServiceStub(channel), new_topic(), keys, load).run()
        return load.numbers(cpu_s(process_id) - began_s)


if __name__ == "__main__":
    serve({"request-load": requests})
