"""A TCP proxy in front of a daemon that a test can make lose connections, swallow bytes, or refuse to connect."""

import asyncio
from types import TracebackType
from typing import Self


class FlakyProxy:
    """Listens on a free port of 127.0.0.1 and passes bytes on to `target` (host:port) as long as the test lets it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.accepted = 0
        """Connections taken so far."""
        self.silent = False
        """True: bytes are taken and thrown away, and connections stay open."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_all(self) -> int:
        """Resets every connection now; returns how many there were."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()
        return len(writers) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            self.accepted += 1
            writer.transport.abort()
            return
        self.accepted += 1
        self._writers |= {writer, upstream_writer}
        for source, sink in ((reader, upstream_writer), (upstream_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if not self.silent:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass  # the connection was dropped, which is what this proxy is for
        finally:
            sink.transport.abort()
