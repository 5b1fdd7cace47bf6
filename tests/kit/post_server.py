"""A real HTTP server for requests from the daemon and its sources."""

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

from tests.kit.eventually import PATIENCE_S

Answer = Callable[[BaseHTTPRequestHandler, bytes], None]
"""Answers a request, given its body. Runs in a thread for each connection."""


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    """Answer a request, to which more can follow on its connection."""
    request.send_response(status)
    for name, value in {**headers, "content-length": str(len(body))}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


class PostServer:
    """Serves on a free port of loopback until the block ends; with `tls`, by HTTPS. `ending` is set at its end."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                answer(self, self.rfile.read(int(self.headers["content-length"] or 0)))

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST  # noqa: N815 - as the base class calls them

            def log_message(self, *_: object) -> None:
                pass

        self.ending: Final = threading.Event()
        self._server: Final = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port: Final = int(self._server.server_address[1])
        self.origin: Final = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._thread: Final = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
