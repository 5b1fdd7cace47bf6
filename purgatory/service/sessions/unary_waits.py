"""Unary waits: one engine owner for each account, one future for each call."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary

from purgatory import sizes
from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.engine.waiting.tables import Owner
from purgatory.service.access.account import Account
from purgatory.service.errors import RpcError
from purgatory.service.translate.result_slices import ResultSlice, slices_of

# With 10,000 waits whose callers have tokens, this takes about 1 % of the loop.
ROUNDS: Final = 8
"""Number of calls to `check_some` that check every wait once."""


class WaitingCallers:
    """Pending waits, identified by the future of their result and removed with it.

    A wait can be pending for hours without any message from its caller, and ends when its caller could no longer make
    the call. The waits are checked in rounds, an eighth of them at a time, because checking a token takes some
    microseconds.
    """

    def __init__(self) -> None:
        self._rechecks: Final[WeakKeyDictionary[asyncio.Future[Any], Callable[[], None]]] = WeakKeyDictionary()
        self._unchecked: list[ReferenceType[asyncio.Future[Any]]] = []
        """Waits that are not yet checked in this round."""

    def add(self, future: asyncio.Future[Any], recheck: Callable[[], None]) -> None:
        """`recheck` raises `RpcError` once the caller could no longer make the call; the future then fails with it."""
        self._rechecks[future] = recheck

    async def check_some(self) -> None:
        """Check some waits. Call this periodically."""
        if not self._unchecked:
            self._unchecked = self._rechecks.keyrefs()
        for number in range(1, len(self._rechecks) // ROUNDS + sizes.CALLERS_CHECKED_PER_SLICE):
            if not self._unchecked:
                return
            if number % sizes.CALLERS_CHECKED_PER_SLICE == 0:
                await asyncio.sleep(0)
            future = self._unchecked.pop()()
            if future is None or future.done():
                continue
            try:
                # Still there: the future is held by a local name now, so the weak key cannot vanish.
                self._rechecks[future]()
            except RpcError as refused:
                future.set_exception(refused)
                future.exception()  # not logged as unread if the call is cancelled at this moment


class UnaryWaits:
    """Calls that wait for one operation each. Operation ids are assigned here, so they always rise.

    An account has an owner in the engine while any of its calls are in flight, so that their waits count against it.
    """

    def __init__(self, engine: Engine, now_ms: Callable[[], int], cancel: Callable[[list[int], Account], None]) -> None:
        """`cancel` cancels operations of an account whose calls have ended."""
        self._engine: Final = engine
        self._now_ms: Final = now_ms
        self._cancel: Final = cancel
        self._owners: Final[dict[Account, Owner]] = {}
        self._account_of_owner: Final[dict[int, Account]] = {}
        self._futures: Final[dict[int, asyncio.Future[ResultSlice]]] = {}
        self._accounts: Final[dict[int, Account]] = {}
        self._abandoned: Final[deque[int]] = deque()
        """Operations whose calls have ended; they will be cancelled."""
        self._is_cancelling = False
        """Some were cancelled in this loop iteration; others wait for the next one."""
        self._last_operation_id = 0

    def __len__(self) -> int:
        return len(self._futures)

    def account_of(self, operation_id: int) -> Account | None:
        """The account whose call waits for an operation; None: the call has ended."""
        return self._accounts.get(operation_id)

    def owner_of(self, account: Account) -> Owner:
        """The engine owner of an account with at least one call in flight."""
        return self._owners[account]

    def account_of_owner(self, owner_id: int) -> Account | None:
        """The account of an engine owner; None: the owner belongs to a session."""
        return self._account_of_owner.get(owner_id)

    def accounts(self) -> list[Account]:
        return list(self._owners)

    def add(self, account: Account) -> tuple[int, asyncio.Future[ResultSlice]]:
        """Return a new operation id and the future of its result, a slice of length 1."""
        if account not in self._owners:
            owner = self._owners[account] = self._engine.add_owner(account.usage)
            self._account_of_owner[owner.owner_id] = account
        account.unary_waits += 1
        # One sequence over all accounts: `_futures` has no key but the id.
        self._last_operation_id += 1
        future: asyncio.Future[ResultSlice] = asyncio.get_running_loop().create_future()
        self._futures[self._last_operation_id] = future
        self._accounts[self._last_operation_id] = account
        return self._last_operation_id, future

    def end(self, operation_id: int) -> None:
        """A call has ended. If its operation is still pending, cancel it.

        If many calls end at once, as when a client with thousands of them disconnects, the rest are cancelled in the
        following loop iterations.
        """
        # `deliver` has taken the future, so the operation has ended.
        if self._futures.pop(operation_id, None) is None:
            self._forget(operation_id)
            return
        self._abandoned.append(operation_id)
        if not self._is_cancelling:
            self._cancel_some()

    def _cancel_some(self) -> None:
        self._is_cancelling = bool(self._abandoned)
        if not self._is_cancelling:
            return
        # Also if nothing is left: the next iteration resets `_is_cancelling`.
        asyncio.get_running_loop().call_soon(self._cancel_some)
        part = [self._abandoned.popleft() for _ in range(min(sizes.WAITS_CANCELLED_PER_TURN, len(self._abandoned)))]
        # One engine call for each account: a client that disconnects leaves thousands of operations of one owner.
        by_account = defaultdict[Account, list[int]](list)
        for operation_id in part:
            by_account[self._accounts[operation_id]].append(operation_id)
        for account, operation_ids in by_account.items():
            self._cancel(operation_ids, account)
        for operation_id in part:
            self._forget(operation_id)

    def _forget(self, operation_id: int) -> None:
        account = self._accounts.pop(operation_id)
        account.unary_waits -= 1
        if not account.unary_waits:
            owner = self._owners.pop(account)
            del self._account_of_owner[owner.owner_id]
            # Nothing of it is pending: each operation has ended, or was cancelled before its call was forgotten.
            self._engine.remove_owner(owner, self._now_ms())

    def deliver(self, completions: Completions) -> None:
        """Set the futures of operations that have ended, except those whose call has been cancelled.

        A few are set in each loop iteration: answering thousands of calls takes a second, and other calls are served
        in between, such as the `Advance` that ended them.
        """
        self._deliver_some(completions, iter(slices_of(completions)), None)

    def _deliver_some(self, completions: Completions, parts: Iterator[ResultSlice], rest: ResultSlice | None) -> None:
        for _ in range(sizes.WAITS_ANSWERED_PER_TURN):
            rest = rest or next(parts, None)
            if rest is None:
                return
            one, rest = rest.split(1) if len(rest) > 1 else (rest, None)
            future = self._futures.pop(completions.operation_ids[one.start], None)
            # A call that was cancelled has its future in the dictionary until its task runs, which may be after this.
            if future is not None and not future.done():
                future.set_result(one)
        asyncio.get_running_loop().call_soon(self._deliver_some, completions, parts, rest)


class OpenWait:
    """Context manager for one `Wait` call: yields its operation id and the future of its result.

    Not a generator, because that would take 0.4 kB, and thousands may be open.
    """

    __slots__ = ("_account", "_operation_id", "_waits")

    def __init__(self, waits: UnaryWaits, account: Account) -> None:
        self._waits: Final = waits
        self._account: Final = account
        self._operation_id = 0

    def __enter__(self) -> tuple[int, asyncio.Future[ResultSlice]]:
        self._operation_id, future = self._waits.add(self._account)
        return self._operation_id, future

    def __exit__(self, *_error: object) -> None:
        self._waits.end(self._operation_id)
