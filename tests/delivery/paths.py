"""The ways in which a session's results are read: rows and columns over gRPC, and server-sent events with JSON."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Final, NamedTuple

import aiohttp
import grpc
from google.protobuf import json_format
from purgatory_client.results import PartitionResult, Result
from purgatory_client.wire.decode_results import arrived_batch

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.http.http_serving import EventReader
from tests.kit.eventually import PATIENCE_S

PATHS: Final = ("rows", "columns", "server-sent events")


class ReadResult(NamedTuple):
    """A result. `cursor` is the incarnation and the sequence number, as in the id of a server-sent event."""

    cursor: str
    operation_id: int
    result: Result

    @property
    def items(self) -> list[PartitionResult]:
        return self.result.items


async def read_results(
    address: str, http_address: str, path: str, session: str, last: str = "-0"
) -> AsyncGenerator[ReadResult, None]:
    """Yield the results behind `last`. The gRPC client has default limits, so it accepts messages of 4 MiB."""
    incarnation, _, sequence = last.rpartition("-")
    if path == "server-sent events":
        headers = {"Last-Event-ID": last} if incarnation else {}
        async with (
            aiohttp.ClientSession(f"http://{http_address}", read_bufsize=1 << 23) as http,
            http.get(f"/v1/results?session={session}", headers=headers) as answer,
        ):
            reader = EventReader(answer)
            while True:
                event = await reader.next()
                if event.name == "message":
                    batch = wire.ResultBatch()
                    json_format.ParseDict(event.data, batch.rows.results.add())
                    incarnation, _, sequence = event.number.rpartition("-")
                    for found in _results_in(batch, incarnation, int(sequence)):
                        yield found
    async with grpc.aio.insecure_channel(address) as channel:
        request = wire.StreamResultsRequest(
            session_id=session, last_sequence=int(sequence), columns=path == "columns", incarnation=incarnation
        )
        stream = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).StreamResults(request)
        while (message := await asyncio.wait_for(stream.read(), PATIENCE_S)) is not grpc.aio.EOF:
            if message.HasField("opened"):
                incarnation = message.opened.incarnation
            elif message.HasField("results"):
                for found in _results_in(message.results, incarnation, message.results.first_sequence):
                    yield found


def _results_in(batch: wire.ResultBatch, incarnation: str, sequence: int) -> Iterator[ReadResult]:
    for arrived in arrived_batch(batch):
        for place, operation_id in enumerate(arrived.operation_ids):
            result = Result(arrived.columns, place, arrived.starts[place])
            yield ReadResult(f"{incarnation}-{sequence}", operation_id, result)
            sequence += 1
