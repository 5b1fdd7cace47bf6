"""The daemon's event loop: uvloop, which also reads gRPC's wake-ups in one go.

gRPC's poller thread writes one byte to a socket pair for each completed operation, and the loop's reader takes all
completed operations but reads one byte per loop iteration. After a burst, unread bytes fill the socket (278 of them on
Linux). From then on, the poller thread blocks in each write until the loop reads a byte: one operation per iteration,
for all connections, until the loop is idle again. With iterations of a millisecond, one caller's event waits for
seconds behind another caller's calls.
"""

import fcntl
import functools
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any, Final, TypeVarTuple

import uvloop

GRPC_READER: Final = "_handle_events"
"""Name of gRPC's callback, which reads a byte and takes all completed operations (grpc.aio's completion queue)."""

Ts = TypeVarTuple("Ts")


class DaemonLoop(uvloop.Loop):
    """An event loop whose gRPC reader leaves no wake-ups unread."""

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:  # noqa: ANN401 - asyncio's type
        """Watch a file for reading, as asyncio does."""
        target = callback.func if isinstance(callback, functools.partial) else callback
        if isinstance(fd, socket.socket) and getattr(target, "__name__", "") == GRPC_READER:
            super().add_reader(fd, read_all_but_one, fd, callback, *args)
        else:
            super().add_reader(fd, callback, *args)


def read_all_but_one(wakeups: socket.socket, callback: Callable[..., Any], *args: Any) -> None:  # noqa: ANN401
    """Read the wake-ups except one, which `callback` reads itself: it fails if there is none."""
    (unread,) = struct.unpack("i", fcntl.ioctl(wakeups, termios.FIONREAD, bytes(4)))
    if unread > 1:
        wakeups.recv(unread - 1)
    callback(*args)
