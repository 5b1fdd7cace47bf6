"""A circuit breaker: while the daemon does not answer, no request waits for it, and a probe finds out when it is back.

Calls are made in one event loop, that of the client, also for requests in threads; so it needs no lock. Threads may ask
whether it is open.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from purgatory_client import errors
from purgatory_client.aio import AsyncClient
from purgatory_client.sources.position_tokens import Positions

PAUSE_S: Final = 1.0
"""Seconds before each probe."""
PROBE_S_MAX: Final = 2.0

_T = TypeVar("_T")

_logger = logging.getLogger("purgatory_client")


class Breaker:
    """Closed: calls are made. Open: they fail at once, and a task asks the daemon. The first answer closes it."""

    def __init__(self) -> None:
        self._probing: asyncio.Task[None] | None = None

    async def call(
        self, client: AsyncClient, positions: Positions, make: Callable[[], Awaitable[_T]], seconds: float
    ) -> _T:
        """Make a call about these positions, which must be answered within `seconds`.

        Raises:
            Unavailable: It was not answered, or the breaker is open.
            PurgatoryClientError: As the call itself.
        """
        if self.is_open:
            raise errors.Unavailable("the daemon does not answer")
        try:
            async with asyncio.timeout(seconds):
                return await make()
        except (TimeoutError, errors.Unavailable, errors.NoAnswer) as error:
            if not self.is_open:  # one of several calls
                _logger.warning("the daemon does not answer: no request waits for it until it does")
                self._probing = asyncio.create_task(_until_answer(client, positions))
            if isinstance(error, TimeoutError):
                raise errors.Unavailable(f"the daemon has not answered within {seconds:.1f} s") from error
            raise

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        probing = self._probing  # in a loop that has been closed it never ends
        return probing is not None and not probing.done() and not probing.get_loop().is_closed()


async def _until_answer(client: AsyncClient, positions: Positions) -> None:
    while True:
        await asyncio.sleep(PAUSE_S)
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                await client.wait_for(positions, timeout=0)
        except (TimeoutError, errors.Unavailable, errors.NoAnswer):
            continue
        except errors.ClientClosed:
            return
        except errors.PurgatoryClientError:
            pass  # refused, so it answers
        _logger.info("the daemon answers again")
        return
