"""Counts the unary calls in flight, so that shutdown can wait for their answers.

A gRPC server that stops gives its grace period to all calls alike: unary ones whose answer is on its way, and streams
that would never end by themselves (a health watch, an idle stream of events). Only the first deserve it.
"""

import asyncio
from types import TracebackType
from typing import Final

QUIET_S: Final = 0.05


class UnaryCalls:
    """Counts unary calls: each is served within `with calls:`."""

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
        """Returns once no call has ended for `QUIET_S`, or after `timeout_s`.

        Calls that have arrived but have not been started yet would otherwise be cut off, rather than told UNAVAILABLE.
        """
        try:
            async with asyncio.timeout(timeout_s):
                served = -1
                while self.count or served != self._served:
                    served = self._served
                    await asyncio.sleep(QUIET_S)
        except TimeoutError:
            return
