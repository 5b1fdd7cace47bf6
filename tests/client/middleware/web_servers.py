"""Real web servers on free ports for tests of the middleware."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import WSGIApplication

import uvicorn
from purgatory_client.middleware.asgi import ReadYourWrites

from tests.kit.eventually import eventually


@asynccontextmanager
async def asgi_server(app: ReadYourWrites) -> AsyncIterator[str]:
    """Serve with uvicorn on this event loop; yields the base URL."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none"))
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started or serving.done(), "the web server has started")
        [socket] = server.servers[0].sockets
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Requests are not logged."""


@contextmanager
def wsgi_server(app: WSGIApplication) -> Iterator[str]:
    """Serve with wsgiref in threads; yields the base URL."""
    with make_server("127.0.0.1", 0, app, _Threads, _Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
