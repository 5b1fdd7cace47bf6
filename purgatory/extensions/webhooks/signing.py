"""Body and headers of a webhook in the format of Standard Webhooks, signed with every current secret."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from google.protobuf.json_format import MessageToDict
from standardwebhooks.webhooks import Webhook

from purgatory.service.transport.watched_file import read_regular_file
from purgatory.v1 import result_pb2, webhook_pb2

OPERATION_ENDED: Final = "operation.ended"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix, not a secret
SECRET_BYTES_MIN: Final = 24
"""Minimum length of a secret (Standard Webhooks specification)."""


class CannotSendWebhooks(Exception):
    """The file of secrets or of certificate authorities cannot be used. The message names the file."""


class WebhookSigner:
    """Signs with every secret of a file (one per line), so that receivers can switch secrets at any time."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._signers: Final = [Webhook(secret) for secret in secrets]

    @classmethod
    def from_file(cls, path: Path) -> "WebhookSigner":
        """Load the secrets.

        Raises:
            CannotSendWebhooks: The file cannot be read, or contains anything other than secrets.
        """
        try:
            lines = read_regular_file(path).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            raise CannotSendWebhooks(f"cannot read {path} (webhooks.secret_file): {error}") from None
        for number, line in enumerate(lines, 1):
            if not _is_secret(line):
                raise CannotSendWebhooks(
                    f"{path} (webhooks.secret_file): secret {number} must be {SECRET_PREFIX} and at least "
                    f"{SECRET_BYTES_MIN} random bytes in base64 (with + and /; receivers cannot read - and _), such as "
                    "from `openssl rand -base64 32`"
                )
        if not lines:
            raise CannotSendWebhooks(f"{path} (webhooks.secret_file) contains no secret")
        return cls(lines)

    def headers(self, webhook_id: str, body: str, now: datetime | None = None) -> list[tuple[bytes, bytes]]:
        moment = now or datetime.now(UTC)
        signatures = " ".join(signer.sign(webhook_id, moment, body) for signer in self._signers)
        return [
            (b"content-type", b"application/json"),
            (b"webhook-id", webhook_id.encode()),
            (b"webhook-timestamp", str(int(moment.timestamp())).encode()),
            (b"webhook-signature", signatures.encode()),
        ]


def body_of(session_id: str, result: result_pb2.Result) -> str:
    """Return `WebhookPayload` in protobuf's JSON mapping."""
    payload = webhook_pb2.WebhookPayload(type=OPERATION_ENDED)
    payload.data.session_id = session_id
    payload.data.result.CopyFrom(result)
    return json.dumps(MessageToDict(payload), separators=(",", ":"), ensure_ascii=False)


def _is_secret(line: str) -> bool:
    """Whether every receiver decodes the secret to the same key.

    Base64 decoders disagree about characters of another alphabet (this package drops them), incomplete padding and
    stray bits, so a secret with any of these is rejected.
    """
    encoded = line.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return False
    canonical = base64.b64encode(key).decode()
    return (
        line.startswith(SECRET_PREFIX)
        and encoded in (canonical, canonical.rstrip("="))
        and len(key) >= SECRET_BYTES_MIN
    )
