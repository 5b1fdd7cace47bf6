"""Calls whose stream is refused before any processing, as by a proxy at its limit (RFC 9113, 8.7)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest
from purgatory_client import AsyncClient
from purgatory_client.errors import DaemonError

HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
EMPTY_MESSAGE = bytes(5)


class RefusingServer:
    """A server that refuses the first streams. It answers later ones with an empty message or, with `code`, resets
    them.
    """

    def __init__(self, refused: int, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.REFUSED_STREAM) -> None:
        self._refused = refused
        self._code = code
        self.seen = Counter[str]()
        self._connections: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A client of this server; both are closed at the end."""
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            async with AsyncClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
                yield client
            await asyncio.gather(*self._connections)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http2.initiate_connection()
        refused = set[int]()
        writer.write(http2.data_to_send())
        while data := await reader.read(65_536):
            for event in http2.receive_data(data):
                if isinstance(event, h2.events.RequestReceived) and self._refused:
                    self._refused -= 1
                    self.seen["refused"] += 1
                    http2.reset_stream(event.stream_id, self._code)
                    refused.add(event.stream_id)
                elif isinstance(event, h2.events.StreamEnded) and event.stream_id not in refused:
                    self.seen["answered"] += 1
                    http2.send_headers(event.stream_id, HEADERS)
                    http2.send_data(event.stream_id, EMPTY_MESSAGE)
                    http2.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            writer.write(http2.data_to_send())
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("code", [h2.errors.ErrorCodes.REFUSED_STREAM, h2.errors.ErrorCodes.CANCEL])
async def test_calls_that_were_not_processed_are_sent_again(code: h2.errors.ErrorCodes) -> None:
    served = RefusingServer(4, code)
    async with served.client() as client:
        assert (await client.close_session("any")).cancelled == 0
    assert served.seen == {"refused": 4, "answered": 1}


async def test_calls_that_may_have_been_processed_are_not_sent_again() -> None:
    served = RefusingServer(10, h2.errors.ErrorCodes.INTERNAL_ERROR)
    async with served.client() as client:
        with pytest.raises(DaemonError, match="RST_STREAM"):
            await client.close_session("any")
    assert served.seen == {"refused": 1}
