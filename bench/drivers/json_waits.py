"""Calls of `Wait` as JSON over HTTP/1.1, from a client that costs next to nothing: what is measured is the daemon."""

import asyncio
import time
from typing import Final, cast

from google.protobuf.json_format import MessageToJson
from purgatory_client.session.channel import open_channel

from bench.drivers.messages import mark_request, new_topic, wait_request
from bench.measure.worker import Numbers, measured, on_uvloop, serve
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

END: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length: "


class JsonConnection(asyncio.Protocol):
    """Sends one request after the other until `until_s`, then sets `ended` to how many were answered."""

    def __init__(self, request: bytes, until_s: float) -> None:
        self.ended: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self._request: Final = request
        self._until_s: Final = until_s
        self._answered = 0
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None, "data came, so there is a connection"
        self._data += data
        if not _is_whole(self._data):
            return
        assert self._data.startswith(b"HTTP/1.1 200 "), self._data
        self._data = b""
        self._answered += 1
        if time.perf_counter() < self._until_s:
            self._transport.write(self._request)
        else:
            self.ended.set_result(self._answered)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionResetError("the daemon closed the connection"))


def _is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(END)
    if LENGTH not in head:
        return answer.endswith(b"0" + END)  # chunked
    return len(body) == int(head.partition(LENGTH)[2].partition(b"\r\n")[0])


@on_uvloop
async def json_waits(address: str, http_address: str, callers: int, seconds: float) -> Numbers:
    """`callers` connections, each with one call after the other for a mark that has been passed, for `seconds`."""
    topic = new_topic()
    async with open_channel(address) as channel:
        await PurgatoryServiceStub(channel).Advance(mark_request(topic, 0, 1_000))
    body = MessageToJson(wait_request(topic, 0, 1_000), indent=None).encode()
    head = (
        f"POST /purgatory.v1.PurgatoryService/Wait HTTP/1.1\r\nhost: {http_address}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    host, _, port = http_address.rpartition(":")
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    until_s = started + seconds
    made = await asyncio.gather(
        *(
            loop.create_connection(lambda: JsonConnection(head.encode() + body, until_s), host, int(port))
            for _ in range(callers)
        )
    )
    answered = await asyncio.gather(*(connection.ended for _, connection in made))
    return measured(time.perf_counter() - started, sum(answered))


if __name__ == "__main__":
    serve({"json-waits": json_waits})
