"""The middleware for ASGI: Starlette, FastAPI, Django under ASGI, and any other application."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from purgatory_client.aio import AsyncClient
from purgatory_client.middleware.exchange import SCOPE_KEY, Answer, Middleware

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class ReadYourWrites(Middleware[AsyncClient]):
    """Wait for the positions in a request's token before the application is called, and return a token of the
    handler's writes (`purgatory_client.middleware.wrote`) in the response.

    Wrap the whole application: a framework answers an exception of a handler outside of the middleware that was added
    to it, so that answer would have no token.

    Only HTTP requests with a token wait. Writes after the response has begun are in no token. A request whose
    positions are not reached in time is answered with 504, one with an invalid token with 400, and with 503 if the
    daemon cannot be reached, unless `on_timeout` says otherwise. The arguments are described at `Middleware`.
    """

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Serve one connection; those that are not HTTP are passed on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = self.header.lower().encode("latin-1")
        tokens = [value.decode("latin-1") for name, value in scope["headers"] if name == key]
        admitted = await self.admit(self.client, tokens)
        if isinstance(admitted, Answer):
            await _send_answer(admitted, send)
            return
        exchange = admitted

        async def send_with_token(message: _Message) -> None:
            if message["type"] == "http.response.start":
                if (written := exchange.written).offsets:
                    written = await self._with_epochs(self.client, written)
                added = _encoded(self._headers_of(exchange, written))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        scope[SCOPE_KEY] = exchange
        with exchange.active():
            await self.app(scope, receive, send_with_token)


async def _send_answer(answer: Answer, send: _Send) -> None:
    headers = _encoded(answer.headers)
    await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
