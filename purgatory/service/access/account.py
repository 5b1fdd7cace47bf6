"""What the daemon keeps of each principal. Without a policy nobody is asked, and all share one account."""

from typing import Final

NOBODY: Final = ""
"""The principal of a caller who was not asked."""


class Account:
    """One principal, and what it holds now."""

    def __init__(self, principal: str) -> None:
        self.principal: Final = principal
        self.sessions = 0
        self.unary_waits = 0


class Accounts:
    """The accounts of this daemon, by principal."""

    def __init__(self) -> None:
        self._by_principal: Final[dict[str, Account]] = {}
        self.nobody: Final = self.of(NOBODY)

    def of(self, principal: str) -> Account:
        """The principal's account, made on first use."""
        account = self._by_principal.get(principal)
        if account is None:
            account = self._by_principal[principal] = Account(principal)
        return account
