"""A real HTTP server that receives webhooks and responds as the test specifies."""

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

from standardwebhooks import Webhook

from tests.kit.eventually import PATIENCE_S, wait_until

SECRET: Final = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HANG, DROP = 0, -1
"""No response: the connection stays silent until the server ends, or is closed at once."""


class Received(NamedTuple):
    """One request with a valid signature."""

    path: str
    webhook_id: str
    payload: dict[str, Any]

    @property
    def operation_id(self) -> int:
        return int(self.payload["data"]["result"]["operationId"])


Answer = Callable[[Received], int]
"""A status code, HANG or DROP."""


class WebhookReceiver:
    """Serves on a free port of loopback until the block ends. `answer` may be replaced at any time.

    `secret` is the senders' signing secret; with `tls`, the server uses HTTPS.
    """

    def __init__(
        self,
        answer: Answer = lambda _received: 204,
        port: int = 0,
        *,
        secret: str = SECRET,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer
        self._webhook: Final = Webhook(secret)
        self._scheme: Final = "http" if tls is None else "https"
        self.received: Final[list[Received]] = []
        self.unsigned: Final[list[str]] = []
        """The errors of requests without a valid signature."""
        self._ending: Final = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                status = receiver._take(self)
                if status == HANG:
                    receiver._ending.wait(PATIENCE_S)
                if status in (HANG, DROP):
                    self.close_connection = True
                    return
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", "/redirected")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server: Final = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread: Final = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/hook") -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}{path}"

    def _take(self, handler: BaseHTTPRequestHandler) -> int:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        try:
            self._webhook.verify(body, dict(handler.headers.items()))
        except Exception as error:  # noqa: BLE001 - the test examines every error
            self.unsigned.append(repr(error))
            return 500
        received = Received(handler.path, handler.headers["webhook-id"], json.loads(body))
        self.received.append(received)
        return self.answer(received)

    def wait_for(self, condition: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until the received requests satisfy the condition, and return them."""
        wait_until(
            lambda: condition(self.received), lambda: f"received only {self.received}, and unsigned {self.unsigned}"
        )
        return list(self.received)
