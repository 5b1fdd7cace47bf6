"""Wait for a number that an application publishes anyway: the position on its status page.

The source polls often while a wait is pending, and seldom otherwise. While the page fails, the mark is stale: a wait
with `fail_when_stale` ends with the reason, others continue when the page is back.

Prints:
    42 is applied: satisfied
    the page is broken: failed, it answers with status 503 instead of 200
"""

import asyncio
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from purgatory_client import AsyncClient
from purgatory_connectors.poll.poll_source import PollSource
from purgatory_connectors.publisher.publisher import Publisher

from purgatory.source_uri import SourceUri

DAEMON = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")


class StatusPage(BaseHTTPRequestHandler):
    """The application's page: {"position": 41}."""

    status, position = 200, 41

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b'{"position": %d}' % self.position)

    def log_message(self, *_: object) -> None: ...


async def main() -> None:
    page = HTTPServer(("127.0.0.1", 0), StatusPage)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    # As a program: purgatory serve --source 'poll+http://HOST:PORT/?pointer=/position&name=recipe&poll_ms=20'
    uri = f"poll+http://127.0.0.1:{page.server_port}/?pointer=/position&name=recipe&poll_ms=20"
    publisher = Publisher(PollSource(SourceUri.parse(uri)), {DAEMON: lambda: AsyncClient(DAEMON)})
    source = asyncio.create_task(publisher.run())
    async with AsyncClient(DAEMON) as client:
        waiting = asyncio.create_task(client.produce({"poll/recipe/position": 42}, timeout=30))
        StatusPage.position = 42
        print(f"42 is applied: {(await waiting).outcome.name.lower()}")
        StatusPage.status = 503
        broken = await client.produce({"poll/recipe/position": 43}, timeout=30, fail_when_stale=0.1)
        reason = next(iter(broken.partitions.values())).stale_reason
        print(f"the page is broken: {broken.outcome.name.lower()}, {reason}")
    source.cancel()
    await asyncio.gather(source, return_exceptions=True)
    page.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
