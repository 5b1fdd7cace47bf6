"""Callbacks of sessions: the interface that the extension `webhooks` implements, and its absence."""

from typing import Protocol

from purgatory.service.errors import invalid_argument
from purgatory.service.sessions.session import Session

MESSAGE = "webhooks are not available on this daemon; read the results from a stream"


class Callbacks(Protocol):
    """How sessions get callbacks."""

    def check_url(self, url: str) -> None:
        """Raises `RpcError` for a URL that may not be a callback."""

    def attach(self, session: Session, url: str) -> None:
        """Gives a session its callback (empty: keeps its present one). Raises `RpcError` if it has another reader."""

    def detach_if_finished(self, session: Session) -> None:
        """Starts the time to live of a session that has nothing pending. Call it when that may have changed."""


class NoCallbacks:
    """For a daemon without webhooks."""

    def check_url(self, _url: str) -> None:
        raise invalid_argument("callback_url", MESSAGE)

    def attach(self, session: Session, url: str) -> None: ...

    def detach_if_finished(self, session: Session) -> None: ...
