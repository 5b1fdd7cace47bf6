"""Shutdown of a host: refuse new work, end pending operations, and let clients fetch their last results."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from purgatory import sizes
from purgatory.engine.calls import ShutDown
from purgatory.service.errors import unavailable
from purgatory.service.gate import SHUTTING_DOWN_MESSAGE
from purgatory.service.host import Host

LOGGER: Final = logging.getLogger(__name__)

POLL_S: Final = 0.01
UNACKNOWLEDGED_MS_MAX: Final = 1_000
"""Results that were written at least this long ago without being acknowledged do not delay shutdown any longer."""


async def drain(host: Host, grace_s: float) -> None:
    """Refuse new work, end all pending operations as SHUTTING_DOWN, and deliver the results for at most `grace_s`."""
    # Before anything ends: an operation that was registered between two slices would be left over, which `_end_pending`
    # asserts.
    host.gate.draining = True
    host.fair_queue.refuse_waiting(lambda: unavailable(SHUTTING_DOWN_MESSAGE))
    deadline_s = asyncio.get_running_loop().time() + grace_s
    await _end_pending(host)
    host.source_links.shut_down()
    # Close streams only after their results are sent: a client stops acknowledging when its stream ends.
    await _wait_until(lambda: _is_flushed(host), deadline_s)
    for stream in host.sessions.streams():
        stream.shut_down()
    await _wait_until(lambda: not host.sessions.streams(), deadline_s)
    if unacknowledged := host.sessions.unacknowledged_results:
        LOGGER.warning("%d results were still unacknowledged at shutdown", unacknowledged)


async def _end_pending(host: Host) -> None:
    """End pending operations in slices. With a journal only unary waits end; the next daemon continues the others."""
    # Unary waits end with their calls, which no journal can continue.
    accounts = host.unary_waits.accounts() if host.journal.keeps else [None]
    ended = 0
    for account in accounts:
        while count := host.perform(account, None, ShutDown(sizes.EXPIRED_PER_SLICE)).ended:
            ended += count
            await asyncio.sleep(0)
    assert host.journal.keeps or host.engine.pending == 0, f"{host.engine.pending} operations were forgotten"
    LOGGER.info("%d pending operations ended as shutting down, %d are kept", ended, host.engine.pending)


async def _wait_until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Poll: this happens once in the life of a daemon, while a notification would slow down a hot path."""
    loop = asyncio.get_running_loop()
    while not condition() and loop.time() < deadline_s:  # noqa: ASYNC110 - see above
        await asyncio.sleep(POLL_S)


def _is_flushed(host: Host) -> bool:
    """Return whether each connected session has its results, as far as its client is still reading them."""
    now_ms = host.time.now_ms()
    for stream in host.sessions.streams():
        outbox = stream.session.outbox
        if stream.closing or not outbox.unacknowledged:
            continue
        if outbox.unwritten or now_ms - stream.last_write_ms < UNACKNOWLEDGED_MS_MAX:
            return False
    return True
