"""Callbacks of sessions: the interface that the extension `webhooks` implements."""

from typing import NamedTuple

from purgatory.service.errors import invalid_argument
from purgatory.service.sessions.session import Session

MESSAGE = "webhooks are not available on this daemon; read the results from a stream"


class WebhookCounts(NamedTuple):
    """The deliveries to callbacks: the fields of `WebhookStatus` in webhook.proto."""

    undelivered: int
    paused: int
    dead_letters: int
    oldest_ms: int | None


class Callbacks:
    """How sessions get callbacks; on a daemon without webhooks they get none."""

    def check_url(self, _url: str) -> None:
        """Raise `RpcError` for a URL that may not be a callback."""
        raise invalid_argument("callback_url", MESSAGE)

    def attach(self, session: Session, url: str) -> None:
        """Set a session's callback (empty: keep its present one). Raises `RpcError` if it has another reader."""

    def detach_if_finished(self, session: Session) -> None:
        """Start the time to live of a session that has nothing pending. Call when that may have changed."""

    def counts(self) -> WebhookCounts | None:
        """Return counts of deliveries; None: there are no webhooks."""
        return None
