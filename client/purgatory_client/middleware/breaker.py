"""A circuit breaker: while the daemon does not answer, no request waits for it, and a probe finds out when it is back.

It runs in one event loop, that of the client, also for requests in threads; so it needs no lock.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from purgatory_client import errors
from purgatory_client.aio import AsyncClient
from purgatory_client.sources.position_tokens import Positions

PAUSE_S: Final = 1.0
"""Seconds from a failure to the next probe."""
PROBE_S_MAX: Final = 2.0

_T = TypeVar("_T")

_logger = logging.getLogger("purgatory_client")


class Breaker:
    """Closed: calls are made. Open: they fail at once, and at most one probe at a time asks the daemon in a task of its
    own, so that no request pays for it. The first answer of any kind closes it.
    """

    def __init__(self) -> None:
        self._probe_at: float | None = None  # None: closed
        self._probe: asyncio.Task[None] | None = None

    async def call(
        self, client: AsyncClient, positions: Positions, make: Callable[[], Awaitable[_T]], seconds: float
    ) -> _T:
        """Make a call about these positions, which must be answered within `seconds`.

        Raises:
            Unavailable: It was not answered, or the breaker is open.
            PurgatoryClientError: As the call itself.
        """
        if self._probe_at is not None:
            self._probe_if_due(client, positions)
            raise errors.Unavailable("the daemon does not answer")
        try:
            async with asyncio.timeout(seconds):
                return await make()
        except TimeoutError as error:
            self._open()
            raise errors.Unavailable(f"the daemon has not answered within {seconds:.1f} s") from error
        except (errors.Unavailable, errors.NoAnswer):
            self._open()
            raise

    def _open(self) -> None:
        if self._probe_at is None:
            _logger.warning("the daemon does not answer: no request waits for it until it does")
        self._probe_at = time.monotonic() + PAUSE_S

    def _probe_if_due(self, client: AsyncClient, positions: Positions) -> None:
        loop, probe = asyncio.get_running_loop(), self._probe
        # A probe in a loop that has been closed never ends.
        is_probing = probe is not None and probe.get_loop() is loop and not probe.done()
        if not is_probing and self._probe_at is not None and time.monotonic() >= self._probe_at:
            self._probe = loop.create_task(self._ask(client, positions))

    async def _ask(self, client: AsyncClient, positions: Positions) -> None:
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                await client.wait_for(positions, timeout=0)
        except (TimeoutError, errors.Unavailable, errors.NoAnswer):
            self._open()
            return
        except errors.PurgatoryClientError:
            pass  # refused, so it answers
        self._probe_at = None
        _logger.info("the daemon answers again")
