"""The event loop that the blocking clients of a process share, in a thread of its own.

gRPC's asyncio layer wakes every loop of a process for every event, so a loop for each client would slow all of them.
It is a daemon thread, so it never keeps a program from ending; clients that are still open then are closed first.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that runs in a thread. Made by `shared_loop`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="purgatory client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt (Ctrl-C) cancels it there."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking client cannot be used from its own event loop; use AsyncClient there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_lock = threading.Lock()
_shared: list[BackgroundLoop] = []


def shared_loop() -> BackgroundLoop:
    """The loop of this process, started on first use. A forked child starts its own: threads do not survive a fork."""
    with _lock:
        if not _shared or _shared[-1].pid != os.getpid():
            _shared.append(BackgroundLoop())
        return _shared[-1]
