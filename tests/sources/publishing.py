"""A source that publishes to a daemon, waits for its marks, and a page with numbers to poll."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from purgatory_client import AsyncClient
from purgatory_client.errors import NotFound
from purgatory_client.views import Partition
from purgatory_connectors.cli import open_source
from purgatory_connectors.publisher.publisher import Publisher

from purgatory.source_uri import SourceUri
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually


@asynccontextmanager
async def publishing(daemon: DaemonProcess, uri: str) -> AsyncIterator[AsyncClient]:
    """A client of the daemon, while the source of this address publishes to it."""
    publisher = Publisher(open_source(SourceUri.parse(uri)), {daemon.address: lambda: AsyncClient(daemon.address)})
    running = asyncio.create_task(publisher.run())
    try:
        async with AsyncClient(daemon.address) as client:
            yield client
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until_mark(client: AsyncClient, topic: str, fits: Callable[[Partition], object]) -> Partition:
    """Wait until partition 0 of the topic exists and fits, and return it."""

    async def found() -> Partition | None:
        mark = await client.partition((topic, 0))
        return mark if fits(mark) else None

    mark = await eventually(found, f"{topic} is as expected", but=NotFound)
    assert mark is not None
    return mark


class Status(ThreadingHTTPServer):
    """An HTTP server that answers every request with `body`. While `may_answer` is not set, it hangs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body = 200, b"0"
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests: list[tuple[str, str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have gone, as a source does that has waited long enough."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def say(self, value: object) -> None:
        self.body = json.dumps(value).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Status

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("authorization", "")))
        self.server.may_answer.wait()
        body = self.server.body
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""


@contextmanager
def status_page() -> Iterator[Status]:
    server = Status()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.may_answer.set()
    server.shutdown()
    server.server_close()
