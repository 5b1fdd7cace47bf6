"""Calls that wait for a message: it may be half read, which takes memory that nothing else counts.

gRPC hands over whole messages, and does not say what it has of others. So when memory is short or will soon be, calls
are ended by how long they have waited, and whose they are. Whoever opens a call has its first message ready: a call
without one after `ARRIVING_S_MAX` is not honest, or too slow for now. An open stream between two messages may just have
nothing to say. Such are ended only of the caller that has the most of them; honest ones reconnect and lose nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from purgatory.service.errors import RpcError, resource_exhausted, unavailable

ARRIVING_S_MAX: Final = 0.5
"""A message that takes longer may be given up."""
STREAMS_INTERVAL_S: Final = 10.0
"""While memory is not short yet, the open streams of one caller are ended at most this often."""

MESSAGE: Final = "memory is short, and the request was not there in time; try again later"


class Arriving:
    """One call, whose next message may be on its way. Belongs to the call's own task."""

    __slots__ = ("_calls", "_refusal", "_task", "caller", "is_first", "since_s")

    def __init__(self, calls: "ArrivingCalls", caller: str, task: asyncio.Task[Any] | None) -> None:
        self.caller: Final = caller
        self.since_s = 0.0
        self.is_first = True
        """Nothing has been read of this call."""
        self._calls: Final = calls
        self._task: Final = task
        self._refusal: RpcError | None = None

    def begin(self) -> None:
        """The call waits for a message."""
        self._calls.begin(self)

    def ended(self) -> None:
        """The call no longer waits for a message."""
        self._calls.remove(self)

    def arrived(self) -> None:
        """The message has arrived, or the call has ended."""
        self.ended()
        self.is_first = False

    def end(self) -> None:
        """Gives the call up. The read itself goes on until gRPC has sent the status: that frees the message."""
        if self._task is not None:
            self._refusal = resource_exhausted("memory", MESSAGE) if self.is_first else unavailable(MESSAGE)
            self._task.cancel()

    def refusal(self) -> RpcError | None:
        """To be asked in the call's task when it is cancelled: what it ends with; None: it was cancelled by another."""
        if self._refusal is None or self._task is None or self._task.uncancel() > 0:
            return None
        return self._refusal


class ArrivingCalls:
    """All of them, in the order in which they began to wait."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._waiting: Final[dict[Arriving, None]] = {}
        self._streams_ended_s: dict[str, float] = {}
        """When callers last had their open streams ended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def call(self, caller: str) -> Arriving:
        """A call of this caller, served by the current task."""
        return Arriving(self, caller, asyncio.current_task())

    def begin(self, call: Arriving) -> None:
        call.since_s = self._now_s()
        self._waiting[call] = None

    def remove(self, call: Arriving) -> None:
        self._waiting.pop(call, None)

    def end_late(self, *, is_short: bool) -> int:
        """Ends the calls of one caller whose messages should have been there by now; returns how many.

        It is the caller with the most that have not sent their first message. Where there is none: the one with the
        most open streams, each as often as `is_short` allows: memory is short now, or only will be.
        """
        now_s = self._now_s()
        late = [call for call in self._waiting if call.since_s <= now_s - ARRIVING_S_MAX]
        by_caller = Counter(call.caller for call in late if call.is_first)
        if not by_caller:
            ended_s = self._streams_ended_s
            self._streams_ended_s = {key: at_s for key, at_s in ended_s.items() if now_s - at_s < STREAMS_INTERVAL_S}
            by_caller = Counter(call.caller for call in late if is_short or call.caller not in self._streams_ended_s)
            if not by_caller:
                return 0
        caller, _ = by_caller.most_common(1)[0]
        ended = [call for call in late if call.caller == caller]
        if any(not call.is_first for call in ended):
            self._streams_ended_s[caller] = now_s
        for call in ended:
            self.remove(call)
            call.end()
        return len(ended)
