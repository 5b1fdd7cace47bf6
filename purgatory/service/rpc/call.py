"""A call as the servicer's methods use it, and calls that wait for a message.

A message may be partly received and occupy memory that nothing else counts. gRPC delivers complete messages and does
not report how much of others it has buffered. When memory is short, or will soon be, calls are therefore ended by how
long they have waited, and by caller. A caller normally has its first message ready when it opens a call: a call without
one after `ARRIVING_S_MAX` is malicious or too slow to be served now. An open stream between two messages may simply be
idle. Idle streams are ended only for the caller that has the most of them; honest clients reconnect and lose nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from purgatory.service.access.account import Account
from purgatory.service.errors import RpcError, resource_exhausted, unauthenticated, unavailable
from purgatory.service.fair_queue import Turn, next_loop_turn

Context = grpc.aio.ServicerContext[Any, Any]


def _no_check() -> None:
    """The recheck on a daemon without access control."""


def check_account(account_of: Callable[[Context], Account], context: Context, account: Account) -> None:
    """Raise `RpcError` once a call could no longer be made, or no longer by this account."""
    if account_of(context) is not account:
        raise unauthenticated("the credential now belongs to another principal")


@dataclass(slots=True)
class Call:
    """A call in flight. `account` is the caller's; `turn` is awaited before each slice of work."""

    context: Context
    account: Account
    turn: Turn = next_loop_turn
    recheck: Callable[[], None] = _no_check
    """For long calls: raises `RpcError` once this principal could no longer make the call."""


Identify = Callable[[str], Callable[[Context], Account]]
"""Returns, for a method, the function that identifies a call's account. That function raises `RpcError` if the caller
is not authenticated or must not make this call.
"""

ARRIVING_S_MAX: Final = 0.5
"""A message that takes longer to arrive may be abandoned, seconds."""
STREAMS_INTERVAL_S: Final = 10.0
"""Minimum interval between two endings of one caller's open streams, unless memory is already short, seconds."""

MESSAGE: Final = "memory is short and the request did not arrive in time; try again later"


class IncompleteRequest:
    """A call whose next message may be in transit. Belongs to the call's own task."""

    __slots__ = ("_now_s", "_refusal", "_task", "_waiting", "caller", "is_first", "since_s")

    def __init__(self, calls: "IncompleteRequests", caller: str, task: asyncio.Task[Any] | None) -> None:
        self.caller: Final = caller
        self.since_s = 0.0
        self.is_first = True
        """No message of this call has been received."""
        self._waiting: Final = calls.waiting
        self._now_s: Final = calls.now_s
        self._task: Final = task
        self._refusal: RpcError | None = None

    def begin(self) -> None:
        self.since_s = self._now_s()
        self._waiting[self] = None

    def ended(self) -> None:
        self._waiting.pop(self, None)

    def end(self) -> None:
        """Cancel the call's task. The read itself continues until gRPC has sent the status, which frees the message."""
        if self._task is not None:
            self._refusal = resource_exhausted("memory", MESSAGE) if self.is_first else unavailable(MESSAGE)
            self._task.cancel()

    def refusal(self) -> RpcError | None:
        """Return the error to end a cancelled call with, or None if someone else cancelled it.

        Call in the call's task when it is cancelled.
        """
        # `uncancel` takes our own cancellation back. If another one is left, the client has gone as well, and the task
        # must end as cancelled.
        if self._refusal is None or self._task is None or self._task.uncancel() > 0:
            return None
        return self._refusal


class IncompleteRequests:
    """All calls that wait for a message, in the order in which they began to wait."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s: Final = now_s
        self.waiting: Final[dict[IncompleteRequest, None]] = {}
        """In order."""
        self._streams_ended_s: dict[str, float] = {}
        """Time of the last ending of open streams, by caller."""

    def __len__(self) -> int:
        return len(self.waiting)

    def call(self, caller: str) -> IncompleteRequest:
        """Return a record for a call of this caller, which the current task serves."""
        return IncompleteRequest(self, caller, asyncio.current_task())

    def end_late(self, *, is_short: bool) -> int:
        """End the overdue calls of one caller, and return their number.

        This is the caller with the most calls whose first message is overdue. If there is none, it is the caller with
        the most idle streams.

        Args:
            is_short: Memory is short now. If it only will be soon, the idle streams of a caller are ended at most
                every `STREAMS_INTERVAL_S`.
        """
        now_s = self.now_s()
        late = [call for call in self.waiting if call.since_s <= now_s - ARRIVING_S_MAX]
        by_caller = Counter(call.caller for call in late if call.is_first)
        if not by_caller:
            ended_s = self._streams_ended_s
            self._streams_ended_s = {key: at_s for key, at_s in ended_s.items() if now_s - at_s < STREAMS_INTERVAL_S}
            by_caller = Counter(call.caller for call in late if is_short or call.caller not in self._streams_ended_s)
            if not by_caller:
                return 0
        # One caller at a time: the next look, a tenth of a second later, shows whether that was enough.
        caller, _ = by_caller.most_common(1)[0]
        # With its idle streams, if it was chosen for late first messages: their memory is unknown too, and the caller
        # is the same.
        ended = [call for call in late if call.caller == caller]
        if any(not call.is_first for call in ended):
            self._streams_ended_s[caller] = now_s
        for call in ended:
            call.ended()
            call.end()
        return len(ended)
