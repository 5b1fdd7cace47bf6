"""The memory budget: what is held, by part, and whether more may be.

What can be counted is counted: the engine by the sizes of its tables, results and answers by theirs, sessions and calls
by their number. A batch is admitted with the worst that it can come to, results of its operations included, so that
what has been admitted can be kept. What cannot be counted (what gRPC has read of messages that are not whole, and what
it has yet to write) shows in the measured size of the process: see `memory_watch`.
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
"""Of the memory that there is, without a setting."""

MESSAGES_IN_BUDGET: Final = 128
"""So many of the largest messages would fill the budget."""
MESSAGE_BYTES_MIN: Final = 1024

SESSION_BYTES: Final = 3_000
CALL_BYTES: Final = 21_500
"""Resident memory of a call in flight, as measured; a bare grpc.aio server takes 18,800 of it."""

CGROUP_LIMITS: Final = ("memory.max", "memory/memory.limit_in_bytes", "memory.limit_in_bytes")
"""Files with the limit of a container: of version 2, and of version 1 (mounted by itself or with others)."""


class MemoryBudget:
    """What is held, in bytes, and the most that may be. Used on the event loop only."""

    def __init__(self, bytes_max: int, engine: Engine, accounts: Accounts) -> None:
        self.bytes_max = bytes_max
        self.program_bytes = 0
        """What the process took before it served anyone."""
        self.answers_bytes = 0
        """Written, and not read yet."""
        self.queues: Callable[[], int] = lambda: 0
        """What journal and archive hold in memory."""
        self.http: Callable[[], int] = lambda: 0
        """Bytes of HTTP requests that are arriving, and of answers that clients have not read."""
        self.calls: Callable[[], int] = lambda: 0
        """How many calls are in flight."""
        self.resident_bytes = 0
        """What the process took when it was last measured."""
        self.is_short = False
        """The process has been measured to be over the budget."""
        self.refusals = 0
        """Batches, calls and sessions that did not fit."""
        self._engine: Final = engine
        self._accounts: Final = accounts

    def parts(self) -> dict[str, int]:
        """What is held, by part."""
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
        """All of them together."""
        return sum(self.parts().values())

    def taken_bytes(self) -> int:
        """What is held by now: without the room that is kept for results."""
        return self.held_bytes() - self._expected_results()

    def _expected_results(self) -> int:
        """Room for the results of what is pending: they take the place of nothing, as tables do not shrink."""
        return self._engine.pending * RESULT_BYTES + self._engine.pending_items * RESULT_ITEM_BYTES

    @property
    def is_full(self) -> bool:
        """Whether nothing may become known any more, and nothing may be registered."""
        return self.is_short or self.held_bytes() >= self.bytes_max

    def refusal(self, more_bytes: int = 0, held_bytes: int = -1) -> Refusal | None:
        """Why no more is taken that would hold so many bytes; None: it is. The refusal's index means nothing.

        `held_bytes` is what is held, if that was worked out just now.
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
        """The worst that so many operations with so many items can come to, while they are registered and later."""
        results = operations * RESULT_BYTES + items * RESULT_ITEM_BYTES
        return self._engine.memory_bytes_more(operations, items) + results


def message_bytes_max(setting: int, budget_bytes_max: int) -> int:
    """The largest message that is taken: as it was set, or less, so that many may come in at once."""
    return max(MESSAGE_BYTES_MIN, min(setting, budget_bytes_max // MESSAGES_IN_BUDGET))


def available_bytes() -> int:
    """The memory of this machine, or of the container if that has less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_limits(membership: Path, mounted: Path) -> list[int]:
    """The memory limits of the control groups that a process is in, as far as they can be read.

    A container sees its own group at the root of the mount; elsewhere the path in `membership` leads to it, and each
    group above it limits it too.
    """
    folders = [mounted]
    for line in _lines(membership):
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
    """The budget: as it was set, or the share of what there is."""
    return setting or int(available_bytes() * SHARE_OF_MACHINE)
