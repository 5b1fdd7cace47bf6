"""The memory budget: the memory held by each part of the daemon, and whether more may be admitted.

Everything that can be counted is counted: the engine by the sizes of its tables, results and answers by theirs,
sessions and calls by their number. A batch is admitted only if its worst case fits, including the results of its
operations, so that admitted work can always be kept. Some memory cannot be counted: messages that gRPC has partly
received, and bytes that it has not written yet. It appears in the measured size of the process; see `memory_watch`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.engine import Engine
from purgatory.service.access.account import Accounts
from purgatory.service.budget.result_bytes import RESULT_BYTES, RESULT_ITEM_BYTES

SHARE_OF_MACHINE: Final = 0.6
"""Default budget as a share of the available memory."""

MESSAGES_IN_BUDGET: Final = 128
"""A message may be at most 1 / MESSAGES_IN_BUDGET of the budget."""
MESSAGE_BYTES_MIN: Final = 1024

SESSION_BYTES: Final = 3_000
CALL_BYTES: Final = 21_500
"""Measured resident memory of a call in flight, bytes; a bare grpc.aio server takes 18,800 of it."""

CGROUP_LIMITS: Final = ("memory.max", "memory/memory.limit_in_bytes", "memory.limit_in_bytes")
"""Files with the memory limit of a container: of cgroup version 2, and of version 1 (mounted alone or with others)."""


class MemoryBudget:
    """The memory held and its maximum, in bytes. Used on the event loop only."""

    def __init__(self, bytes_max: int, engine: Engine, accounts: Accounts) -> None:
        self.bytes_max = bytes_max
        self.program_bytes = 0
        """Size of the process before it served anyone, bytes."""
        self.answers_bytes = 0
        """Bytes of answers that were written but not read yet."""
        self.queues: Callable[[], int] = lambda: 0
        """Returns the bytes that journal and archive hold in memory."""
        self.http: Callable[[], int] = lambda: 0
        """Returns the bytes of HTTP requests that are arriving, and of answers that clients have not read."""
        self.calls: Callable[[], int] = lambda: 0
        """Returns the number of calls in flight."""
        self.resident_bytes = 0
        """Size of the process when it was last measured, bytes."""
        self.is_short = False
        """The measured size of the process exceeds the budget."""
        self.refusals = 0
        """Number of batches, calls and sessions that did not fit."""
        self._engine: Final = engine
        self._accounts: Final = accounts

    def parts(self) -> dict[str, int]:
        """Bytes held, by part."""
        return {
            "program": self.program_bytes,
            "engine": self._engine.memory_bytes(),
            "expected_results": self._expected_results(),
            "results": self._accounts.results_bytes,
            "sessions": self._accounts.sessions * SESSION_BYTES,
            "calls": self.calls() * CALL_BYTES,
            "answers": self.answers_bytes,
            "http": self.http(),
            "queues": self.queues(),
        }

    def held_bytes(self) -> int:
        """Bytes held by all parts."""
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
            message = f"the daemon takes more memory than its budget of {self.bytes_max} bytes; try again later"
            return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)
        held = self.held_bytes() if held_bytes < 0 else held_bytes
        if held + more_bytes <= self.bytes_max:
            return None
        message = (
            f"{held} bytes are held of a budget of {self.bytes_max}, and {more_bytes} more do not fit; try again later"
        )
        return Refusal(0, codes.RESOURCE_EXHAUSTED, "memory", message)

    def let_go(self, answer_bytes: int) -> None:
        """An answer has been written, or its call has ended."""
        self.answers_bytes -= answer_bytes

    def operations_bytes(self, operations: int, items: int) -> int:
        """Return the worst-case memory of this many operations and items, from registration until their results are
        acknowledged.
        """
        results = operations * RESULT_BYTES + items * RESULT_ITEM_BYTES
        return self._engine.memory_bytes_more(operations, items) + results


def message_bytes_max(setting: int, budget_bytes_max: int) -> int:
    """Return the maximum message size: as configured, or less, so that many messages can arrive at once."""
    return max(MESSAGE_BYTES_MIN, min(setting, budget_bytes_max // MESSAGES_IN_BUDGET))


def available_bytes() -> int:
    """Return the memory of this machine, or of the container if that is less."""
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
    return [int(text) for text in texts if text.isdigit()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []


def budget_bytes(setting: int) -> int:
    """Return the budget: as configured, or the default share of the available memory."""
    return setting or int(available_bytes() * SHARE_OF_MACHINE)
