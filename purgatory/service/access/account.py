"""What the daemon keeps of each principal. Without a policy nobody is asked, and all share one account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from purgatory.engine.holdings import Holdings
from purgatory.service.access.audit import Audit
from purgatory.service.access.roles import ALL, Grants

NOBODY: Final = ""
"""The principal of a caller who was not asked."""


class Account:
    """One principal: what it may do, and what it holds now."""

    def __init__(self, principal: str, all_accounts: Accounts, grants: Grants = ALL) -> None:
        self.principal: Final = principal
        self._all: Final = all_accounts
        self.grants = grants
        """Replaced when the policy is: to be asked anew for each message of a stream."""
        self.holdings: Final = Holdings()
        """Pending operations of its sessions, and partitions and keys that it was the first to name."""
        self.results_bytes = 0
        """Of its sessions' unacknowledged results."""
        self.sessions = 0
        self.unary_waits = 0
        self.calls_due_s = 0.0
        """When its calls so far would have come in at the highest rate that it may have; on the monotonic clock."""

    def add_session(self, count: int) -> None:
        """So many sessions more, or less."""
        self.sessions += count
        self._all.sessions += count

    def hold_results(self, more_bytes: int) -> None:
        """Unacknowledged results take so many bytes more, or less."""
        self.results_bytes += more_bytes
        self._all.results_bytes += more_bytes


class Accounts:
    """The accounts of this daemon, by principal."""

    def __init__(self) -> None:
        self.sessions = 0
        self.results_bytes = 0
        self._by_principal: Final[dict[str, Account]] = {}
        self._grants_of: Callable[[str], Grants] = lambda _: ALL
        self.audit: Final = Audit()
        self.nobody: Final = self.of(NOBODY)

    def find(self, principal: str) -> Account:
        """The principal's account; one that holds nothing and is not kept, where nobody of that name has called."""
        return self._by_principal.get(principal) or Account(principal, self, self._grants_of(principal))

    def of(self, principal: str) -> Account:
        """The principal's account, made on first use."""
        account = self._by_principal.get(principal)
        if account is None:
            account = self._by_principal[principal] = Account(principal, self, self._grants_of(principal))
        return account

    def use_grants(self, grants_of: Callable[[str], Grants]) -> None:
        """From now on principals may do what this says of them."""
        self._grants_of = grants_of
        for account in self._by_principal.values():
            account.grants = grants_of(account.principal)
