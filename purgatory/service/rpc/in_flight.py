"""Which calls still need their answer when the daemon ends.

A gRPC server that stops waits for all calls alike: for a unary one whose answer is on its way, and for a stream that
would never end by itself (a health watch, an idle stream of events). Only the first deserve the grace period.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

QUIET_S: Final = 0.05


class UnaryCalls:
    """Counts the unary calls that are being served: each is served within `with calls:`."""

    def __init__(self) -> None:
        self.count = 0
        self._served = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.count -= 1
        self._served += 1
        assert self.count >= 0, f"{self.count} calls are being served"

    async def wait_quiet(self, timeout_s: float) -> None:
        """Returns once no call has been served for `QUIET_S`, or after `timeout_s`.

        Calls that have arrived but were not looked at yet would else be cut, rather than told UNAVAILABLE.
        """
        try:
            async with asyncio.timeout(timeout_s):
                served = -1
                while self.count or served != self._served:
                    served = self._served
                    await asyncio.sleep(QUIET_S)
        except TimeoutError:
            return
