"""Closes connections that open calls and reset them at once (HTTP/2 rapid reset, CVE-2023-44487).

gRPC core's own protection refuses streams while ended calls are still being freed. It cannot distinguish an attacker
from an honest client with the maximum number of calls in flight, whose calls then end with UNAVAILABLE, so it is
switched off (`grpc_options`). Instead, calls that are reset before their request was read are counted. gRPC has no
function that closes a connection, so its socket is shut down, which gRPC treats as a disconnect of the client.
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
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

LOGGER: Final = logging.getLogger(__name__)

# Without a limit, a caller that opened streams and reset each at once took a gigabyte in four seconds.
RESETS_MAX: Final = 1_000
"""Unread calls that a connection may reset in `INTERVAL_S`; honest clients that give up reset fewer."""
INTERVAL_S: Final = 1.0
OPEN_FILES: Final = Path("/proc/self/fd")


class ResetWatch:
    """Counts resets per connection. Used on the event loop only."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._since_s = now_s()
        self._resets: Final = Counter[str]()

    def add(self, peer: str) -> None:
        """Count a call that its client reset unread, and close the connection if there were too many."""
        now_s = self._now_s()
        if now_s - self._since_s >= INTERVAL_S:
            self._since_s = now_s
            self._resets.clear()
        self._resets[peer] += 1
        # Exactly equal, so that a connection is looked for once per interval.
        if self._resets[peer] == RESETS_MAX:  # looking at thousands of files would block the loop for too long
            asyncio.get_running_loop().run_in_executor(None, close_connection, peer)


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
                    # gRPC reads the end of the stream and closes the connection. Without lingering, closing resets it,
                    # so the client notices at once.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RD)
                    LOGGER.warning("connection from %s closed: it reset %d calls within a second", peer, RESETS_MAX)
                    return True
    return False


def _address(connection: socket.socket) -> tuple[str, int]:
    # An IPv6 socket shows IPv4 clients as ::ffff:10.0.0.7, where gRPC writes the plain address.
    host, port = connection.getpeername()[:2]
    return host.removeprefix("::ffff:"), port
