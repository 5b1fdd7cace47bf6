"""Waits with a callback, against a real daemon, with plain gRPC calls."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import grpc

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc, webhook_pb2
from tests.kit import messages
from tests.kit.messages import advance_request, key_signalled, register_batch
from tests.webhooks.receiver import SECRET

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
