"""Raw calls on a daemon process, for lessons that the client library would hide."""

from types import TracebackType
from typing import Self

import grpc

from purgatory.v1 import operation_pb2, purgatory_service_pb2, purgatory_service_pb2_grpc
from tests.daemon_process import DaemonProcess
from tests.service.serving import Peer
from tests.service.test_daemon import fetch_page, sums_by_kind


class DaemonCalls:
    """A channel to a daemon, and its stub. Enter it."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        # Without the bandwidth probe a stream that is not read is held back after some 64 KiB.
        self.channel = grpc.aio.insecure_channel(daemon.address, options=[("grpc.http2.bdp_probe", 0)])
        self.stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    async def session(self, session_id: str, last_sequence: int = 0, *, columns: bool = False) -> Peer:
        """A stream of that session."""
        return await Peer(self, session_id).open(last_sequence, columns=columns)

    async def status(self) -> purgatory_service_pb2.GetStatusResponse:
        """The daemon's counts."""
        answer: purgatory_service_pb2.GetStatusResponse = await self.stub.GetStatus(
            purgatory_service_pb2.GetStatusRequest()
        )
        return answer

    async def pending(self) -> int:
        """Pending operations of all kinds."""
        return sum(kind.pending for kind in (await self.status()).kinds)

    def metric(self, name: str) -> float:
        """A metric, over all its labels."""
        return sum(sums_by_kind(fetch_page(self.daemon, "/metrics")[1], name).values())


def produce_columns(
    operation_ids: range, topic: str = "orders", *, offset: int = 1, timeout_ms: int = 600_000
) -> purgatory_service_pb2.RegisterBatch:
    """Equal waits for one mark of partition 0 of a topic, as columns."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=[operation_pb2.TopicPartition(topic=topic)],
        operation_id=operation_ids,
        offset=[offset],
        timeout_ms=[timeout_ms],
    )
    return purgatory_service_pb2.RegisterBatch(batch_id=operation_ids.start, columns=columns)
