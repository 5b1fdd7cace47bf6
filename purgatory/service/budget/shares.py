"""Shares: the maximum that one account may hold of a limit that is common to all accounts.

The rule: an account may hold at most `shares.times_free` times the amount that is still free. With 2, a single account
can use up to two thirds of a limit, two accounts up to two fifths each, and there is always room for another account.
The rule does not depend on the number of accounts, and takes nothing back from an account above its share: it gets
nothing more until there is more room. Callers without authentication share one account, which is not limited by shares.
A policy may give a principal another `times_free`, and its own maxima (`own_shares`).
"""

from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.engine import Engine
from purgatory.service.access.account import NOBODY, Account, Accounts
from purgatory.service.budget.memory_budget import SESSION_BYTES, MemoryBudget, budget_bytes
from purgatory.service.budget.result_bytes import RESULT_BYTES, RESULT_ITEM_BYTES
from purgatory.service.settings import HostSettings


def share(times_free: int, limit: int, held_by_all: int, held: int) -> int:
    """Return the maximum for an account that holds `held`, while all accounts together hold `held_by_all` of a limit.

    An account that has reached it holds `times_free` times what is free then. `times_free` 0 disables shares.
    """
    free = max(0, limit - held_by_all)
    if times_free == 0:
        return held + free
    # After taking x more, held + x = times_free * (free - x).
    return held + max(0, (times_free * free - held) // (1 + times_free))


class Shares:
    """The accounts of a daemon, their shares of its limits, and its memory budget, which is shared in the same way."""

    def __init__(self, settings: HostSettings, engine: Engine) -> None:
        self._times_free: Final = settings.shares.times_free
        self._limits: Final = settings.limits
        self._engine: Final = engine
        self.accounts: Final = Accounts()
        self.budget: Final = MemoryBudget(budget_bytes(settings.limits.memory_bytes_max), engine, self.accounts)

    def _of(self, account: Account, limit: int, held_by_all: int, held: int, own_most: int | None) -> int:
        """Return an account's maximum of a limit. `own_most` is its maximum in the policy; None: it has none there."""
        own = account.own_shares.times_free
        most = share(self._times_free if own is None else own, limit, held_by_all, held)
        return most if own_most is None else min(most, own_most)

    def set_in_engine(self, account: Account) -> None:
        """Pass the account's current shares of operations, items, partitions and keys to the engine."""
        if account.principal == NOBODY:
            return
        held, own, engine, limits = account.holdings, account.own_shares, self._engine, self._engine.limits
        held.operations_max = self._of(
            account, limits.pending_operations_max, engine.pending, held.operations, own.pending_operations_max
        )
        held.items_max = self._of(
            account, limits.pending_items_max, engine.pending_items, held.items, own.pending_items_max
        )
        held.partitions_max = self._of(
            account, limits.partitions_max, engine.partition_count, held.partitions, own.partitions_max
        )
        held.keys_max = self._of(account, limits.signal_keys_max, engine.held_key_count, held.keys, own.signal_keys_max)

    def session_refusal(self, account: Account, sessions: int) -> Refusal | None:
        """Return why the account may not open another session, given the total number of sessions; None if it may."""
        own_most = account.own_shares.sessions_max
        most = self._of(account, self._limits.sessions_max, sessions, account.sessions, own_most)
        if account.sessions < most or account.principal == NOBODY:
            return None
        message = f"{account.sessions} sessions are yours, your share now; close one, or try again later"
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "sessions", message)

    def unary_wait_refusal(self, account: Account, in_flight: int) -> Refusal | None:
        """Return why the account may not make another call of `Wait`; None if it may."""
        own_most = account.own_shares.unary_waits_max
        most = self._of(account, self._limits.unary_waits_max, in_flight, account.unary_waits, own_most)
        if account.unary_waits < most or account.principal == NOBODY:
            return None
        message = f"{account.unary_waits} calls of Wait are yours, your share now; try again later"
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "unary_waits", message)

    def memory_refusal(self, account: Account, more_bytes: int) -> Refusal | None:
        """Return why the account may not hold more bytes, by its share or by the whole budget; None if it may."""
        budget = self.budget
        held_by_all = budget.held_bytes()
        refused = budget.refusal(more_bytes, held_by_all)
        if refused is not None or account.principal == NOBODY:
            return refused
        # The program itself belongs to no account, so it is taken off the budget and off what is held.
        held, program = self.held_bytes(account), budget.program_bytes
        own_most = account.own_shares.memory_bytes_max
        most = self._of(account, budget.bytes_max - program, held_by_all - program, held, own_most)
        if held + more_bytes <= most:
            return None
        message = f"{held} bytes are held for you, and your share now is {most}: {more_bytes} more do not fit"
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)

    @staticmethod
    def held_bytes(account: Account) -> int:
        """Bytes held by an account."""
        held = account.holdings
        return (
            held.memory_bytes()
            + held.operations * RESULT_BYTES
            + held.items * RESULT_ITEM_BYTES
            + account.results_bytes
            + account.sessions * SESSION_BYTES
        )
