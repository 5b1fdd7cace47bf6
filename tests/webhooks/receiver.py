"""A real HTTP server that receives webhooks and responds as the test specifies.

Waits with a callback, against a real daemon, with plain gRPC calls.
"""

import json
import ssl
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import grpc
from standardwebhooks import Webhook

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc, webhook_pb2
from tests.kit import messages
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.messages import advance_request, key_signalled, register_batch
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

    def url(self, path: str = "/hook") -> str:
        return self.origin + path

    def _respond(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        status = self._take(request, body)
        if status == HANG:
            self.ending.wait(PATIENCE_S)
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


NEVER_MS: Final = 3_600_000


def webhook_flags(folder: Path, *more: str, hosts: str = "127.0.0.1:* localhost:*") -> list[str]:
    """Flags of a daemon that may call receivers on loopback."""
    secret_file = folder / "webhook-secrets"
    secret_file.write_text(SECRET + "\n", "utf-8")
    return [
        "--webhooks-allowed-hosts", hosts, "--webhooks-allow-http", "--webhooks-allow-private",
        "--webhooks-secret-file", str(secret_file), *more,
    ]  # fmt: skip


class CallbackCaller:
    """Registers waits for keys, and ends them."""

    def __init__(self, address: str) -> None:
        self._channel: Final = grpc.insecure_channel(address)
        self.stub: Final = purgatory_service_pb2_grpc.PurgatoryServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def register(self, session_id: str, url: str, keys: Iterable[str], first_id: int = 1) -> wire.Receipt:
        """Register one wait for the first signal of each key."""
        operations = [messages.signal(number, key, timeout_ms=NEVER_MS) for number, key in enumerate(keys, first_id)]
        batch = register_batch(*operations)
        request = wire.RegisterRequest(session_id=session_id, batch=batch, callback_url=url)
        answer: wire.RegisterResponse = self.stub.Register(request)
        return answer.receipt

    def signal(self, *keys: str) -> None:
        self.stub.Advance(advance_request(*[key_signalled(key) for key in keys]))

    def dead_letters(self) -> list[webhook_pb2.DeadLetter]:
        found: list[webhook_pb2.DeadLetter] = []
        token = ""
        while True:
            page = self.stub.ListDeadLetters(webhook_pb2.ListDeadLettersRequest(page_size=2, page_token=token))
            found.extend(page.dead_letters)
            token = page.next_page_token
            if not token:
                return found

    def unacknowledged(self) -> int:
        status: wire.GetStatusResponse = self.stub.GetStatus(wire.GetStatusRequest())
        return status.unacknowledged_results
