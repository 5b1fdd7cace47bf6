"""Viewers of the live page: each holds the streams of one view, as a browser does, and reads what comes."""

import asyncio
import time
from typing import Final

from purgatory_client.session.channel import open_channel

from bench.measure.worker import Numbers, cpu_seconds, measured, on_uvloop, serve
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

STREAMS: Final = {
    "now": ("/page/live/now", "/page/repeat/GetStatus"),
    "wheel": ("/page/live/wheel",),
    "waits": ("/page/live/waits",),
    "sessions": ("/page/live/sessions",),
    "ends": ("/page/live/ends",),
}
"""By view: what it follows."""
OPEN_S: Final = 1.0
"""By then each stream has been opened, and what is remembered only for viewers has begun."""


class Stream:
    """One stream of server-sent events. `begin` returns once it has told something."""

    def __init__(self, http_address: str, path: str) -> None:
        self._http_address: Final = http_address
        self._path: Final = path
        self.bytes = 0
        self._reading: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        host, _, port = self._http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {self._path} HTTP/1.1\r\nhost: {self._http_address}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        self._reading = asyncio.create_task(self._read(reader, writer), name="viewer's stream")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.bytes += len(data)
        finally:
            writer.close()

    async def end(self) -> None:
        assert self._reading is not None, "it was begun"
        assert not self._reading.done(), f"{self._path} ended by itself"
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def satisfied(stub: PurgatoryServiceStub) -> int:
    """How many operations have been since the daemon started."""
    status = await stub.GetStatus(wire.GetStatusRequest())
    return sum(kind.satisfied for kind in status.kinds)


@on_uvloop
async def view(address: str, http_address: str, process_id: int, views: str, seconds: float) -> Numbers:
    """One viewer of each of these views (names, with a comma in between; or none) for `seconds`, while somebody else
    loads the daemon: its processor's time meanwhile as `seconds`, and the operations that were satisfied. `share`:
    that time as a share of what passed.
    """
    streams = [Stream(http_address, path) for name in views.split(",") if name for path in STREAMS[name]]
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        await asyncio.gather(*(stream.begin() for stream in streams))
        await asyncio.sleep(OPEN_S)
        used_s, ended, began_s = cpu_seconds(process_id), await satisfied(stub), time.perf_counter()
        await asyncio.sleep(seconds)
        passed_s = time.perf_counter() - began_s
        used_s, ended = cpu_seconds(process_id) - used_s, await satisfied(stub) - ended
        await asyncio.gather(*(stream.end() for stream in streams))
    return {**measured(used_s, ended), "share": used_s / passed_s}


if __name__ == "__main__":
    serve({"view": view})
