"""Sources that publish to daemons in the test's event loop, waits for their marks, and a page with numbers to poll."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from purgatory_client import AsyncClient
from purgatory_client.errors import NotFound, Unavailable
from purgatory_client.views import Partition
from purgatory_connectors.cli import open_source
from purgatory_connectors.publisher.mark_lineage import LineageStore
from purgatory_connectors.publisher.observation import End, Observation, SourceState
from purgatory_connectors.publisher.publisher import Publisher, Source

from purgatory.source_uri import SourceUri
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually
from tests.kit.post_server import PostServer, reply


@asynccontextmanager
async def running(source: Source, addresses: Sequence[str], folder: Path | None = None) -> AsyncIterator[Publisher]:
    """Run a source that publishes to these daemons, with the state that an earlier one has stored in the folder."""
    clients = {address: partial(AsyncClient, address, name="source") for address in addresses}
    publisher = Publisher(source, clients, LineageStore(folder))
    running = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def publishing(daemon: DaemonProcess, uri: str) -> AsyncIterator[AsyncClient]:
    """A client of the daemon, while the source of this address publishes to it."""
    async with running(open_source(SourceUri.parse(uri)), [daemon.address]), AsyncClient(daemon.address) as client:
        yield client


class DictSource(Source):
    """Publishes `positions`, by topic: offset and identity."""

    name = "dict://"
    topic_prefixes: tuple[str, ...] = ("t/",)

    def __init__(self, positions: dict[str, tuple[int, str]]) -> None:
        self.positions = positions

    async def run(self, publisher: Publisher) -> None:
        while True:
            gone = [name for name in publisher.published("t/") if name[0] not in self.positions]
            publisher.observe(Observation(topic, 0, *at) for topic, at in self.positions.items())
            publisher.observe(Observation(*name, None) for name in gone)
            publisher.report(SourceState.LIVE)
            await asyncio.sleep(0.01)

    async def ends(self, names: Sequence[str]) -> list[End]:
        return [End(name, 0, self.positions[name][0]) for name in names]


async def until_mark(client: AsyncClient, topic: str, fits: Callable[[Partition], object]) -> Partition:
    """Wait until partition 0 of the topic exists and fits, and return it."""

    async def found() -> Partition | None:
        mark = await client.partition((topic, 0))
        return mark if fits(mark) else None

    mark = await eventually(found, f"{topic} is as expected", but=(NotFound, Unavailable))
    assert mark is not None
    return mark


class Status(PostServer):
    """An HTTP server that answers every request with `body`. While `may_answer` is not set, it hangs."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.status, self.body = 200, b"0"
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests: list[tuple[str, str]] = []
        self.address = f"127.0.0.1:{self.port}"

    def __exit__(self, *error: object) -> None:
        self.may_answer.set()
        super().__exit__(*error)

    def say(self, value: object) -> None:
        self.body = json.dumps(value).encode()

    def _respond(self, request: BaseHTTPRequestHandler, _body: bytes) -> None:
        self.requests.append((request.path, request.headers.get("authorization", "")))
        self.may_answer.wait()
        with contextlib.suppress(ConnectionError):  # a source that has waited long enough is gone
            reply(request, self.status, self.body)
