"""State per principal. Without access control, all callers share one account."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Final
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field

from purgatory.engine.account_usage import AccountUsage
from purgatory.service.access.audit import Audit
from purgatory.service.access.roles import ALL, Grants

Most = Annotated[int, Field(ge=0)]


class OwnShares(BaseModel):
    """Shares of one principal; None means the default. A maximum never exceeds what is free of the limit."""

    # Strict: in a policy, true or "100" is a mistake and must not become a number.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    times_free: Annotated[int, Field(ge=0, le=1_000)] | None = None
    """Overrides `shares.times_free`."""
    calls_per_second_max: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Overrides `limits.calls_per_second_max`; 0 means unlimited."""
    sessions_max: Most | None = None
    unary_waits_max: Most | None = None
    pending_operations_max: Most | None = None
    pending_items_max: Most | None = None
    partitions_max: Most | None = None
    signal_keys_max: Most | None = None
    memory_bytes_max: Most | None = None


AS_FOR_ALL = OwnShares()

NOBODY: Final = ""
"""The principal of callers without authentication."""

ACCOUNTS_KEPT_MIN: Final = 1_000
"""Up to this number, accounts are kept even if they are empty."""
EXAMINED_PER_ACCOUNT: Final = 4
"""Accounts examined for each new one. More than one, so that their number shrinks again after a burst."""


class Account:
    """One principal: its grants and its current use of resources."""

    def __init__(self, principal: str, all_accounts: "Accounts", grants: Grants = ALL) -> None:
        self.principal: Final = principal
        self._all: Final = all_accounts
        self.grants = grants
        """Replaced when the policy is reloaded, so streams must read it for every message."""
        self.own_shares = AS_FOR_ALL
        """Shares of this principal in the policy. Replaced when the policy is reloaded."""
        self.usage: Final = AccountUsage(principal)
        """Pending operations of its sessions, and the partitions and keys that it named first."""
        self.results_bytes = 0
        """Size of the unacknowledged results of its sessions."""
        self.answers_bytes = 0
        """Size of the answers to its listings that it has not read."""
        self.sessions = 0
        self.unary_waits = 0
        self.calls_due_s = 0.0
        """Time (monotonic clock, seconds) at which all its previous calls would have arrived at its maximum rate."""

    def holds_nothing(self, now_s: float) -> bool:
        """Whether the account uses nothing, so that a new one could replace it once no call refers to it."""
        # Every count that belongs to an account must be named here. If one is missing, an account that still has it
        # could be replaced by a new one, whose share begins at 0.
        held = self.usage
        return not (
            self.sessions
            or self.unary_waits
            or self.results_bytes
            or self.answers_bytes
            or held.operations
            or held.items
            or held.partitions
            or held.keys
            or held.owned_keys
            or held.name_bytes
            or self.calls_due_s > now_s
        )

    def add_session(self, count: int) -> None:
        """Add `count` sessions; negative: remove."""
        self.sessions += count
        self._all.sessions += count

    def hold_results(self, more_bytes: int) -> None:
        """Add to the bytes of unacknowledged results; negative: subtract."""
        self.results_bytes += more_bytes
        self._all.results_bytes += more_bytes


class Accounts:
    """The accounts of this daemon, by principal.

    The set of principals is open (a JSON web token can name any principal), so unused accounts are evicted: beyond
    `ACCOUNTS_KEPT_MIN`, each new account causes a few others to be examined, oldest first. A call in flight must get
    the same account again, so evicted accounts stay reachable through weak references while a call holds them.
    """

    def __init__(self) -> None:
        self.sessions = 0
        self.results_bytes = 0
        self._by_principal: Final[OrderedDict[str, Account]] = OrderedDict()
        self._evicted: Final[WeakValueDictionary[str, Account]] = WeakValueDictionary()
        self._grants_of: Callable[[str], Grants] = lambda _: ALL
        self._shares_of: Callable[[str], OwnShares] = lambda _: AS_FOR_ALL
        self.audit: Final = Audit()
        self.nobody: Final = self.of(NOBODY)

    def __len__(self) -> int:
        """Number of accounts that have not been evicted."""
        return len(self._by_principal)

    def find(self, principal: str) -> Account:
        """Return the principal's account, or an empty one that is not stored if the principal has never called."""
        return self._by_principal.get(principal) or self._evicted.get(principal) or self._make(principal)

    def of(self, principal: str) -> Account:
        """Return the principal's account; it is created on first use."""
        account = self._by_principal.get(principal)
        if account is None:
            # The same object as long as a call refers to it: rechecks compare accounts by identity.
            account = self._evicted.pop(principal, None) or self._make(principal)
            self._evict_some()
            self._by_principal[principal] = account
        return account

    def use_policy(self, grants_of: Callable[[str], Grants], shares_of: Callable[[str], OwnShares]) -> None:
        self._grants_of, self._shares_of = grants_of, shares_of
        # Also those that were evicted: calls in flight still refer to them, and must not keep rights that were
        # withdrawn.
        for account in [*self._by_principal.values(), *self._evicted.values()]:
            account.grants = grants_of(account.principal)
            account.own_shares = shares_of(account.principal)

    def _make(self, principal: str) -> Account:
        account = Account(principal, self, self._grants_of(principal))
        account.own_shares = self._shares_of(principal)
        return account

    def _evict_some(self) -> None:
        if len(self._by_principal) < ACCOUNTS_KEPT_MIN:
            return
        for _ in range(EXAMINED_PER_ACCOUNT):
            principal, account = self._by_principal.popitem(last=False)
            # An account in use goes to the end, so the next call examines others.
            if account.principal != NOBODY and account.holds_nothing(time.monotonic()):
                self._evicted[principal] = account
            else:
                self._by_principal[principal] = account
