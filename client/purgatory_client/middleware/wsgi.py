"""The middleware for WSGI: Django, Flask, and any other application."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

from purgatory_client.aio import AsyncClient
from purgatory_client.blocking import Client
from purgatory_client.middleware.exchange import SCOPE_KEY, Answer, Exchange, Middleware

_StartResponse = Callable[..., Any]
_T = TypeVar("_T")


class ReadYourWrites(Middleware[Client]):
    """Wait for the positions in a request's token before the application is called, and return a token of the
    handler's writes (`purgatory_client.middleware.wrote`) in the response.

    As `purgatory_client.middleware.asgi.ReadYourWrites`, with a blocking client. A server that forks must create the
    client in each of its workers.
    """

    def __call__(self, environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        received = environ.get("HTTP_" + self.header.upper().replace("-", "_"), "")
        # The client's event loop runs in another thread, and a turn in it may take milliseconds.
        begun = admitted = self._begin([received])
        if isinstance(begun, Exchange) and begun.must_wait:
            admitted = self._run(lambda client: self._finish(client, begun))
        if isinstance(admitted, Answer):
            start_response(f"{admitted.status:d} {admitted.status.phrase}", admitted.headers)
            return [admitted.body]
        exchange = admitted

        def start_with_token(status: str, headers: list[tuple[str, str]], *error: object) -> object:
            written = exchange.written
            if written.offsets and not self._lookups.is_open:
                written = self._run(lambda client: self._with_epochs(client, exchange.written))
            return start_response(status, [*headers, *self._headers_of(exchange, written)], *error)

        environ[SCOPE_KEY] = exchange
        with exchange.active():
            body: Iterable[bytes] = self.app(environ, start_with_token)
        # Servers send a list or a file in ways of their own, and neither calls `wrote`.
        files = environ.get("wsgi.file_wrapper")
        is_content = isinstance(body, list | tuple) or (isinstance(files, type) and isinstance(body, files))
        return body if is_content else _Streamed(body, exchange)

    def _run(self, call: Callable[[AsyncClient], Coroutine[Any, Any, _T]]) -> _T:
        return self.client._run(call(self.client._client))  # noqa: SLF001 - this package's own


class _Streamed:
    """A body that the application computes while it is sent, and that may call `wrote`."""

    def __init__(self, body: Iterable[bytes], exchange: Exchange) -> None:
        self._body: Final = body
        self._exchange: Final = exchange
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        if self._parts is None:  # once: a server may ask an iterator for its iterator
            with self._exchange.active():
                self._parts = iter(self._body)
        return self

    def __next__(self) -> bytes:
        assert self._parts is not None, "an iterator is asked for its first part after `iter`"
        with self._exchange.active():
            return next(self._parts)

    def close(self) -> None:
        """Called by the server, also when it has not begun to read."""
        with self._exchange.active():
            getattr(self._body, "close", lambda: None)()
