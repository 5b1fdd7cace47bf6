"""Raw calls on a daemon process, for lessons that the client library would hide."""

from types import TracebackType
from typing import Self

from purgatory.v1 import purgatory_service_pb2
from tests.daemon_process import DaemonProcess
from tests.service.serving import DaemonChannel, Peer
from tests.service.test_daemon import fetch_page, sums_by_kind


class DaemonCalls(DaemonChannel):
    """A channel to a daemon, and its stub. Enter it."""

    def __init__(self, daemon: DaemonProcess) -> None:
        super().__init__(daemon.address)
        self.daemon = daemon

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
