"""The event loop that a client belongs to: the running one at its first call. gRPC's channels are bound to it."""

import asyncio

from purgatory_client.errors import WrongEventLoop
from purgatory_client.session.channel import check_process


class LoopBound:
    """Base of the clients for asyncio. They may be created without a loop, for example when a module is imported."""

    _loop: asyncio.AbstractEventLoop | None = None

    def _enter_loop(self) -> None:
        """Belong to the running loop: from the first call on, or because the previous loop is closed.

        Raises:
            WrongEventLoop: The previous loop is not closed.
        """
        check_process()
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise WrongEventLoop(
                    "this client is used in another event loop, which is not closed; create an AsyncClient in each "
                    "event loop, or use the blocking Client, which threads may share"
                )
            self._leave_loop()
        self._loop = loop

    def _leave_loop(self) -> None:
        """Forget everything that is bound to the closed loop."""
        raise NotImplementedError
