"""A call as the servicer's methods use it: gRPC's context, and the account of the caller."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from purgatory.service.access.account import Account
from purgatory.service.errors import unauthenticated
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
