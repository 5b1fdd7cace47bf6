"""The web app: `POST /orders/ID` writes, `GET /orders/ID` reads. A header carries the position of the write to the
read, through any browsers and services in between.
"""

from abc import ABC, abstractmethod
from typing import Final

from aiohttp import web
from purgatory_client import AsyncClient

TOKEN: Final = "Purgatory-Token"  # noqa: S105 - the name of a header
WAIT_S_MAX: Final = 5.0


class Orders(ABC):
    """Storage to which orders are written, and from which they can be read some time later."""

    @abstractmethod
    async def write(self, order_id: str) -> dict[str, int]:
        """Store an order. Returns the mark that shows when readers see it, and the offset that the mark must reach."""

    @abstractmethod
    async def read(self, order_id: str) -> bool:
        """Whether readers see the order yet."""


class Shop:
    """The request handlers."""

    def __init__(self, orders: Orders, purgatory: AsyncClient) -> None:
        self._orders: Final = orders
        self._purgatory: Final = purgatory

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/orders/{id}", self._post), web.get("/orders/{id}", self._get)])
        return app

    async def _post(self, request: web.Request) -> web.Response:
        offsets = await self._orders.write(request.match_info["id"])
        return web.Response(status=201, headers={TOKEN: await self._purgatory.token(offsets)})

    async def _get(self, request: web.Request) -> web.Response:
        if not await self._caught_up(request.headers.get(TOKEN)):
            return web.Response(status=503, text="not yet; try again")
        found = await self._orders.read(request.match_info["id"])
        return web.Response(status=200 if found else 404)

    async def _caught_up(self, token: str | None) -> bool:
        """Whether the caller's writes can be read yet. Returns at once without a token."""
        if token is None:
            return True
        result = await self._purgatory.wait_for(token, timeout=WAIT_S_MAX)
        return result.satisfied
