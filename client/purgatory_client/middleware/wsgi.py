"""The middleware for WSGI: Django, Flask, and any other application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from purgatory_client.blocking import Client
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.middleware.exchange import Exchange, Middleware, refusal, without_epochs
from purgatory_client.sources.position_tokens import Positions

StartResponse = Callable[..., Any]


class ReadYourWrites(Middleware[Client]):
    """Wait for the positions in a request's token before the application is called, and return a token of what the
    handler wrote (`purgatory_client.middleware.wrote`) in the response.

    As `purgatory_client.middleware.asgi.ReadYourWrites`, with a blocking client. A server that forks must create the
    client in each of its workers.
    """

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        received = environ.get("HTTP_" + self.header.upper().replace("-", "_"), "")
        try:
            exchange = Exchange([received], self.prefixes)
            result = self.client.wait_for(exchange.awaited, timeout=self.timeout, fail_when_stale=self.fail_when_stale)
            answer = exchange.judge(result)
        except PurgatoryClientError as error:
            answer = refusal(error)
        if answer is not None:
            start_response(f"{answer.status:d} {answer.status.phrase}", answer.headers)
            return [answer.body]

        def start_with_token(status: str, headers: list[tuple[str, str]], *error: object) -> object:
            if exchange.written.offsets:
                headers = [*headers, (self.header, exchange.token(self._with_epochs(exchange)))]
            return start_response(status, headers, *error)

        with exchange.active():
            body: Iterable[bytes] = self.app(environ, start_with_token)
            return body

    def _with_epochs(self, exchange: Exchange) -> Positions:
        try:
            return self.client.with_epochs(exchange.written.offsets)
        except PurgatoryClientError as error:
            return without_epochs(exchange.written, error)
