"""Polls of coordinators, against a server that stops answering."""

import asyncio
import struct
from contextlib import suppress

import pytest
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka.group_poller import GroupPoller

METADATA, API_VERSIONS = 3, 18


class SilentBroker:
    """Answers only the request for supported versions. Counts connections that the client has not closed."""

    def __init__(self) -> None:
        self.fell_silent, self.changed = asyncio.Event(), asyncio.Condition()
        self.open_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        self.open_count += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                api_key, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
                if api_key == API_VERSIONS:
                    known = struct.pack(">ihi6h", correlation_id, 0, 2, METADATA, 0, 1, API_VERSIONS, 0, 0)
                    writer.write(struct.pack(">i", len(known)) + known)
                else:
                    self.fell_silent.set()
        writer.close()
        async with self.changed:
            self.open_count -= 1
            self.changed.notify_all()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_no_connection_stays_open(is_cancelled: bool) -> None:
    """After `close` all connections are closed, even if a caller was cancelled while one was being opened."""
    silent = SilentBroker()
    server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    poller = GroupPoller({"bootstrap_servers": f"127.0.0.1:{port}", "request_timeout_ms": 300})
    asking = asyncio.create_task(poller.offsets("billing"))
    await silent.fell_silent.wait()
    if is_cancelled:
        asking.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else SourceStale):
        await asking
    await poller.close()
    async with asyncio.timeout(60), silent.changed:
        await silent.changed.wait_for(lambda: silent.open_count == 0)
    server.close()
    await server.wait_closed()
