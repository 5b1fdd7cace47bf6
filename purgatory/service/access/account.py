"""What the daemon keeps of each principal. Without a policy nobody is asked, and all share one account."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from purgatory.engine.holdings import Holdings
from purgatory.service.access.audit import Audit
from purgatory.service.access.own_shares import AS_FOR_ALL, OwnShares
from purgatory.service.access.roles import ALL, Grants

NOBODY: Final = ""
"""The principal of a caller who was not asked."""


KEPT_WITHOUT_ASKING: Final = 1_000
"""So few accounts are kept whatever they hold."""
LOOKED_AT: Final = 4
"""Accounts that are looked at for each new one: more than one, so that they become fewer again."""


class Account:
    """One principal: what it may do, and what it holds now."""

    def __init__(self, principal: str, all_accounts: Accounts, grants: Grants = ALL) -> None:
        self.principal: Final = principal
        self._all: Final = all_accounts
        self.grants = grants
        """Replaced when the policy is: to be asked anew for each message of a stream."""
        self.own_shares = AS_FOR_ALL
        """Of the policy too."""
        self.holdings: Final = Holdings()
        """Pending operations of its sessions, and partitions and keys that it was the first to name."""
        self.results_bytes = 0
        """Of its sessions' unacknowledged results."""
        self.sessions = 0
        self.unary_waits = 0
        self.calls_due_s = 0.0
        """When its calls so far would have come in at the highest rate that it may have; on the monotonic clock."""

    def holds_nothing(self, now_s: float) -> bool:
        """Whether a new account in its place would be the same, but for the credentials of calls in flight."""
        held = self.holdings
        return not (
            self.sessions
            or self.unary_waits
            or self.results_bytes
            or held.operations
            or held.items
            or held.partitions
            or held.keys
            or held.name_bytes
            or self.calls_due_s > now_s
        )

    def add_session(self, count: int) -> None:
        """So many sessions more, or less."""
        self.sessions += count
        self._all.sessions += count

    def hold_results(self, more_bytes: int) -> None:
        """Unacknowledged results take so many bytes more, or less."""
        self.results_bytes += more_bytes
        self._all.results_bytes += more_bytes


class Accounts:
    """The accounts of this daemon, by principal.

    Who may call need not be known beforehand (a JSON web token names any principal), so accounts that hold nothing are
    let go: beyond `KEPT_WITHOUT_ASKING` each new one has some of the others looked at, the oldest first. A call in
    flight refers to its account and must find the same one again: one that was let go is found as long as anybody has
    it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.sessions = 0
        self.results_bytes = 0
        self._now_s: Final = now_s
        self._by_principal: Final[OrderedDict[str, Account]] = OrderedDict()
        self._let_go: Final[WeakValueDictionary[str, Account]] = WeakValueDictionary()
        self._grants_of: Callable[[str], Grants] = lambda _: ALL
        self._shares_of: Callable[[str], OwnShares] = lambda _: AS_FOR_ALL
        self.audit: Final = Audit()
        self.nobody: Final = self.of(NOBODY)

    def __len__(self) -> int:
        """Accounts that are kept."""
        return len(self._by_principal)

    def find(self, principal: str) -> Account:
        """The principal's account; one that holds nothing and is not kept, where nobody of that name has called."""
        return self._by_principal.get(principal) or self._let_go.get(principal) or self._make(principal)

    def of(self, principal: str) -> Account:
        """The principal's account, made on first use."""
        account = self._by_principal.get(principal)
        if account is None:
            account = self._let_go.pop(principal, None) or self._make(principal)
            self._let_some_go()
            self._by_principal[principal] = account
        return account

    def use_policy(self, grants_of: Callable[[str], Grants], shares_of: Callable[[str], OwnShares]) -> None:
        """From now on principals may do and hold what this says of them."""
        self._grants_of, self._shares_of = grants_of, shares_of
        for account in [*self._by_principal.values(), *self._let_go.values()]:
            account.grants = grants_of(account.principal)
            account.own_shares = shares_of(account.principal)

    def _make(self, principal: str) -> Account:
        account = Account(principal, self, self._grants_of(principal))
        account.own_shares = self._shares_of(principal)
        return account

    def _let_some_go(self) -> None:
        if len(self._by_principal) < KEPT_WITHOUT_ASKING:
            return
        for _ in range(LOOKED_AT):
            principal, account = self._by_principal.popitem(last=False)
            if account.principal != NOBODY and account.holds_nothing(self._now_s()):
                self._let_go[principal] = account
            else:
                self._by_principal[principal] = account
