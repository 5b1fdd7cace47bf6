"""An event loop in a thread of its own, for tests that block."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from tests.kit.eventually import PATIENCE_S

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
