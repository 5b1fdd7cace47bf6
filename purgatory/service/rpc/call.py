"""One call as the servicer's methods see it: gRPC's context, and on whose account it is served."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from purgatory.service.access.account import Account
from purgatory.service.fair_queue import Turn, next_loop_turn

Context = grpc.aio.ServicerContext[Any, Any]


def _no_check() -> None:
    """On a daemon that asks nobody."""


@dataclass(slots=True, frozen=True)
class Call:
    """A call in flight. `account` is that of the principal who calls; `turn` is awaited before each slice of work."""

    context: Context
    account: Account
    turn: Turn = next_loop_turn
    recheck: Callable[[], None] = _no_check
    """For calls that last: raises `RpcError` once this principal could not make the call any more."""


Identify = Callable[[str], Callable[[Context], Account]]
"""For a method: on whose account its calls are served. What it returns raises `RpcError` for a caller who has not
proven who it is, or may not make this call.
"""
