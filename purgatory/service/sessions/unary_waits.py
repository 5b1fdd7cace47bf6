"""Unary waits: one internal engine owner for all of them, one future for each call."""

import asyncio
from typing import Final

from purgatory.engine.completions import Completions
from purgatory.engine.waiting.tables import Owner
from purgatory.service.access.account import Account
from purgatory.service.sessions.outbox import ResultSlice, slices_of


class UnaryWaits:
    """Calls that wait for one operation each. Ids are given out here, so that they always rise."""

    def __init__(self, owner: Owner) -> None:
        self.owner: Final = owner
        self._futures: Final[dict[int, asyncio.Future[ResultSlice]]] = {}
        self._accounts: Final[dict[int, Account]] = {}
        self._last_operation_id = 0

    def __len__(self) -> int:
        """Calls in flight."""
        return len(self._futures)

    def account_of(self, operation_id: int) -> Account | None:
        """Whose call waits for an operation; None: the call has ended."""
        return self._accounts.get(operation_id)

    def add(self, account: Account) -> tuple[int, asyncio.Future[ResultSlice]]:
        """A new operation id, and the future of its result: a slice of one."""
        self._last_operation_id += 1
        future: asyncio.Future[ResultSlice] = asyncio.get_running_loop().create_future()
        self._futures[self._last_operation_id] = future
        self._accounts[self._last_operation_id] = account
        return self._last_operation_id, future

    def remove(self, operation_id: int) -> bool:
        """Forgets a call that has ended; whether its operation has not."""
        del self._accounts[operation_id]
        return self._futures.pop(operation_id, None) is not None

    def deliver(self, completions: Completions) -> None:
        """Sets the futures of operations that have ended, except those whose call was cancelled meanwhile."""
        for part in slices_of(completions):
            rest: ResultSlice | None = part
            while rest is not None:
                one, rest = rest.split(1) if len(rest) > 1 else (rest, None)
                future = self._futures.pop(completions.operation_ids[one.start], None)
                if future is not None and not future.done():
                    future.set_result(one)
