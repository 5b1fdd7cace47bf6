"""Shares: the maximum that one account may hold of a limit that is common to all accounts.

The rule: an account may hold at most `shares.times_free` times the amount that is still free. With 2, a single account
can use up to two thirds of a limit, two accounts up to two fifths each, and there is always room for another account.
The rule does not depend on the number of accounts, and takes nothing back from an account above its share: it gets
nothing more until there is more room. Callers without authentication share one account, which is not limited by shares.
A policy may give a principal another `times_free`, and its own maxima (`OwnShares`).

The memory budget is such a limit. Everything that can be counted is counted: the engine by the sizes of its tables,
results and answers by theirs, sessions and calls by their number. A batch is admitted only if its worst case fits,
including the results of its operations, so that admitted work can always be kept. Some memory cannot be counted:
messages that gRPC has partly received, and bytes that it has not written yet. It appears in the measured size of the
process; see `memory_watch`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.engine import Engine
from purgatory.service.access.account import NOBODY, Account, Accounts
from purgatory.service.settings import HostSettings
from purgatory.service.translate.result_slices import RESULT_BYTES, RESULT_ITEM_BYTES

SHARE_OF_MACHINE: Final = 0.6
"""Default budget as a share of the available memory."""

MESSAGES_IN_BUDGET: Final = 128
"""A message may be at most 1 / MESSAGES_IN_BUDGET of the budget."""
MESSAGE_BYTES_MIN: Final = 1024

CGROUP_LIMITS: Final = ("memory.max", "memory/memory.limit_in_bytes", "memory.limit_in_bytes")
"""Files with the memory limit of a container: of cgroup version 2, and of version 1 (mounted alone or with others)."""


def message_bytes_max(setting: int, budget_bytes_max: int) -> int:
    """Return the maximum message size: as configured, or less, so that many messages can arrive at once."""
    return max(MESSAGE_BYTES_MIN, min(setting, budget_bytes_max // MESSAGES_IN_BUDGET))


def available_bytes() -> int:
    """Return the memory of this machine, or of the container if that is less."""
    # In a container, this is the memory of the whole machine.
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_limits(membership: Path, mounted: Path) -> list[int]:
    """Return the memory limits of the control groups that a process is in, as far as they can be read.

    A container sees its own group at the root of the mount. Elsewhere the path in `membership` leads to the group,
    which every group above it limits too.
    """
    folders = [mounted]
    for line in _lines(membership):
        # At most two splits: the path may contain colons.
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            base = mounted / "memory" if controllers else mounted
            group = base / path.strip("/")
            folders += [group, *[above for above in group.parents if base in above.parents]]
    texts = [line for folder in folders for name in CGROUP_LIMITS for line in _lines(folder / name)]
    # The text "max" means that the group has no limit.
    return [int(text) for text in texts if text.isdigit()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []


def budget_bytes(setting: int) -> int:
    """Return the budget: as configured, or the default share of the available memory."""
    return setting or int(available_bytes() * SHARE_OF_MACHINE)


UNARY_WAITS_MAX: Final = 100_000
"""Concurrent calls of `Wait`, over gRPC and HTTP."""
SESSION_BYTES: Final = 3_000
CALL_BYTES: Final = 23_000
"""Measured resident memory of a call in flight, bytes; a bare grpc.aio server takes 18,800 of it."""


class MemoryHolder:
    """A part of the daemon that counts the bytes it holds."""

    held_bytes = 0


class MemoryBudget:
    """The memory held and its maximum, in bytes. Used on the event loop only."""

    def __init__(
        self, bytes_max: int, engine: Engine, accounts: Accounts, calls: Callable[[], int], queues: Callable[[], int]
    ) -> None:
        """`calls` returns the number of calls in flight, `queues` the bytes that listeners and sources hold."""
        self.bytes_max = bytes_max
        self.program_bytes = 0
        """Size of the process before it served anyone, bytes."""
        # Like all counts here, given back exactly once for each time that it was raised. What is forgotten is missing
        # from the budget until the daemon ends; what is given back twice lets too much in.
        self.answers_bytes = 0
        """Bytes of answers that were written but not read yet."""
        self.http = MemoryHolder()
        """HTTP requests that are arriving, and answers that clients have not read."""
        self.uncounted_bytes = 0
        """Memory that nothing counts, in bytes, if it is much; otherwise 0. `MemoryWatch` sets it."""
        self.is_short = False
        """The measured size of the process exceeds the budget."""
        self.refusals = 0
        """Number of batches, calls and sessions that did not fit."""
        self._engine: Final = engine
        self._accounts: Final = accounts
        self._calls: Final = calls
        self._queues: Final = queues

    def parts(self) -> dict[str, int]:
        return {
            "program": self.program_bytes,
            "engine": self._engine.memory_bytes(),
            "expected_results": self._expected_results(),
            "results": self._accounts.results_bytes,
            "sessions": self._accounts.sessions * SESSION_BYTES,
            "calls": self._calls() * CALL_BYTES,
            "answers": self.answers_bytes,
            "http": self.http.held_bytes,
            "queues": self._queues(),
        }

    def held_bytes(self) -> int:
        return sum(self.parts().values())

    def taken_bytes(self) -> int:
        """Bytes held now, without the memory reserved for results."""
        return self.held_bytes() - self._expected_results()

    def _expected_results(self) -> int:
        """Memory reserved for the results of pending operations, in addition to the tables, which do not shrink."""
        return self._engine.pending * RESULT_BYTES + self._engine.pending_items * RESULT_ITEM_BYTES

    @property
    def is_full(self) -> bool:
        """Whether the budget is used up: no new names and no registrations are accepted."""
        return self.is_short or self.held_bytes() >= self.bytes_max

    def refusal(self, more_bytes: int = 0, held_bytes: int = -1) -> Refusal | None:
        """Return why `more_bytes` more are refused; None if they fit. The index of the refusal is meaningless.

        `held_bytes` can be passed if it has just been computed.
        """
        if self.is_short:
            message = f"the daemon uses more memory than its budget of {self.bytes_max} bytes; try again later"
            return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)
        held = self.held_bytes() if held_bytes < 0 else held_bytes
        if held + more_bytes <= self.bytes_max:
            return None
        message = (
            f"{held} of a budget of {self.bytes_max} bytes are in use; {more_bytes} more do not fit; try again later"
        )
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)

    def hold_answer(self, account: Account, more_bytes: int) -> None:
        """Add an unread answer; negative: its call has ended."""
        account.answers_bytes += more_bytes
        self.answers_bytes += more_bytes

    def operations_bytes(self, operations: int, items: int) -> int:
        """Return the worst-case memory of this many operations and items, from registration until their results are
        acknowledged.
        """
        results = operations * RESULT_BYTES + items * RESULT_ITEM_BYTES
        # With the results, although they do not exist yet: otherwise operations that end all at once could not be
        # answered.
        return self._engine.memory_bytes_more(operations, items) + results


def share(times_free: int, limit: int, held_by_all: int, held: int) -> int:
    """Return the maximum for an account that holds `held`, while all accounts together hold `held_by_all` of a limit.

    An account that has reached it holds `times_free` times what is free then. `times_free` 0 disables shares.
    """
    # Not negative: limits may be lowered, and restored operations may exceed them.
    free = max(0, limit - held_by_all)
    if times_free == 0:
        return held + free
    # After taking x more, held + x = times_free * (free - x).
    return held + max(0, (times_free * free - held) // (1 + times_free))


class Shares:
    """The accounts of a daemon, their shares of its limits, and its memory budget, which is shared in the same way."""

    def __init__(
        self,
        settings: HostSettings,
        engine: Engine,
        calls: Callable[[], int] = lambda: 0,
        queues: Callable[[], int] = lambda: 0,
    ) -> None:
        """`calls` and `queues`: see `MemoryBudget`."""
        self._times_free: Final = settings.shares.times_free
        self._limits: Final = settings.limits
        self._engine: Final = engine
        self.accounts: Final = Accounts()
        self.budget: Final = MemoryBudget(
            budget_bytes(settings.limits.memory_bytes_max), engine, self.accounts, calls, queues
        )

    def _of(self, account: Account, limit: int, held_by_all: int, held: int, own_most: int | None) -> int:
        """Return an account's maximum of a limit. `own_most` is its maximum in the policy; None: it has none there."""
        own = account.own_shares.times_free
        most = share(self._times_free if own is None else own, limit, held_by_all, held)
        return most if own_most is None else min(most, own_most)

    def may_add(self, account: Account, limit: int, held_by_all: int, held: int, own_most: int | None = None) -> bool:
        """Return whether an account that holds `held` of a limit may hold one more."""
        has_share = account.principal != NOBODY
        return held_by_all < limit and not (has_share and self.has_all(account, limit, held_by_all, held, own_most))

    def principal_may_add(self, principal: str, limit: int, held_by_all: int, held: int) -> bool:
        return self.may_add(self.accounts.of(principal), limit, held_by_all, held)

    def has_all(self, account: Account, limit: int, held_by_all: int, held: int, own_most: int | None = None) -> bool:
        """Return whether a caller with the shares of this account holds all of its share of a limit.

        One that holds nothing never does: shares of a small limit are rounded down, in the end to 0.
        """
        return held >= max(self._of(account, limit, held_by_all, held, own_most), 0 if own_most == 0 else 1)

    def set_in_engine(self, account: Account) -> None:
        """Pass the account's current shares of operations, items, partitions and keys to the engine."""
        # Without a policy all callers share this account, and the limits of the engine hold for it.
        if account.principal == NOBODY:
            return
        held, own, engine, limits = account.usage, account.own_shares, self._engine, self._engine.limits
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
        # The limit of all its values, but only those of keys with waits take room: others can be forgotten.
        held.value_bytes_max = self._of(
            account, limits.signal_values_bytes_max, engine.held_value_bytes, held.held_value_bytes, None
        )

    def session_refusal(self, account: Account, sessions: int) -> Refusal | None:
        """Return why the account may not open another session, given the total number of sessions; None if it may."""
        own_most = account.own_shares.sessions_max
        if self.may_add(account, self._limits.sessions_max, sessions, account.sessions, own_most):
            return None
        message = f"you have {account.sessions} sessions, which is your current share; close one, or try again later"
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "sessions", message)

    def unary_wait_refusal(self, account: Account, in_flight: int) -> Refusal | None:
        """Return why the account may not make another call of `Wait`, given the total number; None if it may."""
        if in_flight >= UNARY_WAITS_MAX:
            message = f"{UNARY_WAITS_MAX} calls of Wait are in flight; allowed: {UNARY_WAITS_MAX}"
            return Refusal(0, codes.RESOURCE_EXHAUSTED, "unary_waits", message)
        own_most = account.own_shares.unary_waits_max
        if self.may_add(account, UNARY_WAITS_MAX, in_flight, account.unary_waits, own_most):
            return None
        message = (
            f"you have {account.unary_waits} calls of Wait in flight, which is your current share; try again later"
        )
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "unary_waits", message)

    def memory_refusal(self, account: Account, more_bytes: int) -> Refusal | None:
        """Return why the account may not hold more bytes, by its share or by the whole budget; None if it may."""
        budget = self.budget
        held_by_all = budget.held_bytes()
        refused = budget.refusal(more_bytes, held_by_all)
        if refused is not None or account.principal == NOBODY:
            return refused
        # The program itself belongs to no account, so it is taken off the budget and off what is held. Uncounted memory
        # leaves less for everyone: otherwise the account that holds the most fills the counted part of the budget, and
        # then all others are refused because the process is over it.
        held, program = self.held_bytes(account), budget.program_bytes
        own_most = account.own_shares.memory_bytes_max
        held_by_all += budget.uncounted_bytes - program
        most = self._of(account, budget.bytes_max - program, held_by_all, held, own_most)
        if held + more_bytes <= most:
            return None
        message = f"you use {held} bytes of memory, and your current share is {most}: {more_bytes} more do not fit"
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)

    def answer_refusal(self, account: Account) -> Refusal | None:
        """Return why the account may not get another answer that may be large; None if it may."""
        budget = self.budget
        held_by_all = budget.held_bytes()
        refused = budget.refusal(held_bytes=held_by_all)
        own_bytes = account.answers_bytes
        is_free = account.principal == NOBODY or not self.has_all(account, budget.bytes_max, held_by_all, own_bytes)
        if refused is not None or is_free:
            return refused
        message = f"{own_bytes} bytes of answers to you are unread, which is your current share: read them first"
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)

    @staticmethod
    def held_bytes(account: Account) -> int:
        held = account.usage
        return (
            held.memory_bytes()
            + held.operations * RESULT_BYTES
            + held.items * RESULT_ITEM_BYTES
            + account.results_bytes
            + account.answers_bytes
            + account.sessions * SESSION_BYTES
        )
