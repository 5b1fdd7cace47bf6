"""Idle signal keys by account, and which of them is forgotten first when there is no room for another one.

It is the oldest key of the account that has the most. So however many keys one account signals, it pushes out its own,
and an account with no more than an equal part of the room loses nothing.
"""

from collections import OrderedDict
from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage

TOLERANCE: Final[i64] = 16
"""An account may be taken from although another has more, by one in this many: finding the largest visits all."""


class IdleOrder:
    """The idle keys of one account, the oldest first, and their total size."""

    def __init__(self) -> None:
        # Not a plain dictionary: it finds its first key behind the gaps of all keys that were removed before it.
        self.keys: Final[OrderedDict[str, None]] = OrderedDict()
        self.size: i64 = 0


class IdleKeys:
    """The idle keys of all accounts. The size of a key is 1, or the length of its value."""

    def __init__(self) -> None:
        self.by_account: Final[dict[AccountUsage, IdleOrder]] = {}
        """Accounts that have at least one."""
        self.count: i64 = 0
        self._largest: IdleOrder | None = None
        self._size_max: i64 = 0
        """No account but the largest one has more than this."""

    def add(self, account: AccountUsage, key: str, size: i64) -> None:
        """Add a key, which will be the last one of its account to be forgotten."""
        order = self.by_account.get(account)
        if order is None:
            order = self.by_account[account] = IdleOrder()
        order.keys[key] = None
        order.size += size
        self.count += 1
        if order.size >= self._size_max:
            self._largest, self._size_max = order, order.size

    def remove(self, account: AccountUsage, key: str, size: i64) -> None:
        order = self.by_account[account]
        del order.keys[key]
        order.size -= size
        self.count -= 1
        if not order.keys:
            del self.by_account[account]

    def touch(self, account: AccountUsage, key: str) -> None:
        """Move a key to the end of its account's order."""
        self.by_account[account].keys.move_to_end(key)

    def first_to_forget(self, account: AccountUsage, more: i64) -> str:
        """The key to forget so that this account can have `more`. There must be a key."""
        most = self._find_largest()
        own = self.by_account.get(account)
        # Of two accounts with equal use, the one that needs the room loses a key.
        return next(iter((most if own is None or own.size + more < most.size else own).keys))

    def _find_largest(self) -> IdleOrder:
        largest = self._largest
        if largest is None or not largest.keys or largest.size < self._size_max - self._size_max // TOLERANCE:
            largest = None
            for order in self.by_account.values():
                if largest is None or order.size > largest.size:
                    largest = order
            assert largest is not None, "no key is idle"
            self._largest, self._size_max = largest, largest.size
        return largest
