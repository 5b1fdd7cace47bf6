"""Closes connections that flood the daemon with calls.

Calls that are reset before their request was read (HTTP/2 rapid reset, CVE-2023-44487) are counted here. gRPC core's
own protection refuses streams while ended calls are still being freed. It cannot distinguish an attacker from an honest
client with the maximum number of calls in flight, whose calls then end with UNAVAILABLE, so it is switched off
(`grpc_options`). For calls without a credential, see `rpc.strangers`.

gRPC has no function that closes a connection, so its socket is shut down, which gRPC treats as a disconnect of the
client. Calls of the connection that gRPC has not started yet are dropped.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from purgatory.service.histogram import counters

LOGGER: Final = logging.getLogger(__name__)

# Without a limit, a caller that opened streams and reset each at once took a gigabyte in four seconds.
RESETS_MAX: Final = 1_000
"""Unread calls that a connection may reset in `INTERVAL_S`; honest clients that give up reset fewer."""
INTERVAL_S: Final = 1.0
LOG_INTERVAL_S: Final = 5.0
RESET, REFUSED = "reset", "refused"
"""The calls for which a connection is closed."""
OPEN_FILES: Final = Path("/proc/self/fd")


class FloodWatch(Collector):
    """Counts resets per connection, and closed connections. Used on the event loop only."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._since_s = now_s()
        self._resets: Final = Counter[str]()
        self._closing: Final[set[str]] = set()
        self._closed: Final = {RESET: 0, REFUSED: 0}
        self._logged_s = -LOG_INTERVAL_S
        self._unlogged = 0

    def reset(self, peer: str) -> None:
        """Count a call that its client reset unread, and close the connection if there were too many."""
        now_s = self._now_s()
        if now_s - self._since_s >= INTERVAL_S:
            self._since_s = now_s
            self._resets.clear()
        self._resets[peer] += 1
        # Exactly equal, so that a connection is looked for once per interval.
        if self._resets[peer] == RESETS_MAX:
            self.close(peer, RESET, f"it reset {RESETS_MAX} calls within a second")

    def close(self, peer: str, calls: str, reason: str) -> None:
        """Close a connection soon, unless it is being closed. `calls`: RESET or REFUSED."""
        if peer in self._closing:
            return
        self._closing.add(peer)
        # In a thread: looking at thousands of files would block the loop for too long.
        closing = asyncio.get_running_loop().run_in_executor(None, close_connection, peer)
        closing.add_done_callback(lambda done: self._done(peer, calls, reason, is_closed=done.result()))

    def _done(self, peer: str, calls: str, reason: str, *, is_closed: bool) -> None:
        self._closing.discard(peer)
        if not is_closed:
            return
        self._closed[calls] += 1
        if self._now_s() - self._logged_s < LOG_INTERVAL_S:
            self._unlogged += 1
            return
        others = f"; {self._unlogged} others were closed since this was last logged" if self._unlogged else ""
        LOGGER.warning("connection from %s closed: %s%s", peer, reason, others)
        self._logged_s, self._unlogged = self._now_s(), 0

    def collect(self) -> Iterable[Metric]:
        text = (
            "gRPC connections closed because of floods: of calls that were reset unread, or of calls that were refused "
            "because they had no valid credential or named no method."
        )
        return [counters("purgatory_connections_closed", text, ["calls"], self._closed.items())]


def close_connection(peer: str) -> bool:
    """Shut down the socket that is connected to `peer`, in gRPC's notation: ipv4:10.0.0.7:41822, ipv6:%5B::1%5D:41822.

    Returns False if there is no such socket (any more).
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (host.strip("[]"), int(port)) if port.isdigit() else None
    for file in [int(path.name) for path in OPEN_FILES.iterdir()]:
        with contextlib.suppress(OSError):  # closed since it was listed, or not connected
            if not stat.S_ISSOCK(os.fstat(file).st_mode):
                continue
            # On a copy of the descriptor: closing the original would take it away from gRPC, which still uses its
            # number.
            with socket.socket(fileno=os.dup(file)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and _address(connection) == wanted:
                    # gRPC can neither read nor write, and closes the connection. In one direction only, it would go on
                    # reading what the client sends. Without lingering, the client notices at once.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RDWR)
                    return True
    return False


def _address(connection: socket.socket) -> tuple[str, int]:
    # An IPv6 socket shows IPv4 clients as ::ffff:10.0.0.7, where gRPC writes the plain address.
    host, port = connection.getpeername()[:2]
    return host.removeprefix("::ffff:"), port
