"""A real HTTP server that receives webhooks and responds as the test specifies."""

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple

from standardwebhooks import Webhook

from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.post_server import PostServer, reply

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


class WebhookReceiver(PostServer):
    """`answer` may be replaced at any time. `secret` is the senders' signing secret."""

    def __init__(
        self, answer: Answer = lambda _received: 204, *, secret: str = SECRET, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(self._respond, tls)
        self.answer = answer
        self._webhook: Final = Webhook(secret)
        self.received: Final[list[Received]] = []
        self.unsigned: Final[list[str]] = []
        """The errors of requests without a valid signature."""
        self._ending: Final = threading.Event()

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        super().__exit__(*error)

    def url(self, path: str = "/hook") -> str:
        return self.origin + path

    def _respond(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        status = self._take(request, body)
        if status == HANG:
            self._ending.wait(PATIENCE_S)
        if status in (HANG, DROP):
            request.close_connection = True
            return
        reply(request, status, b"", **({"location": "/redirected"} if 300 <= status < 400 else {}))

    def _take(self, request: BaseHTTPRequestHandler, body: bytes) -> int:
        try:
            self._webhook.verify(body, dict(request.headers.items()))
        except Exception as error:  # noqa: BLE001 - the test examines every error
            self.unsigned.append(repr(error))
            return 500
        received = Received(request.path, request.headers["webhook-id"], json.loads(body))
        self.received.append(received)
        return self.answer(received)

    def wait_for(self, condition: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until the received requests satisfy the condition, and return them."""
        wait_until(
            lambda: condition(self.received), lambda: f"received only {self.received}, and unsigned {self.unsigned}"
        )
        return list(self.received)
