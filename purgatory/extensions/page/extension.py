"""The page extension."""

import asyncio

from purgatory.extension import Core, Extension, HttpParts
from purgatory.extensions.page.live_page import LivePage
from purgatory.service.http.http_calls import HttpMethods
from purgatory.service.listeners.listener import Listener


class PageExtension(Extension):
    """Serves the page and its streams."""

    name = "page"

    def __init__(self, core: Core) -> None:
        self._core = core
        self._page: LivePage | None = None
        self._sampling: asyncio.Task[None] | None = None

    @property
    def listener(self) -> Listener | None:
        return None if self._page is None else self._page.ends

    def routes(self, methods: HttpMethods) -> HttpParts:
        core = self._core
        self._page = LivePage(core.host, core.metrics, methods, core.status_line)
        return HttpParts(self._page.routes(), self._page.applications())

    def start(self) -> None:
        if self._page is not None:
            self._sampling = asyncio.create_task(self._page.hour.run(), name="page samples")

    async def close(self, _grace_s: float) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
