"""The size of the memory budget: as configured, or a share of the memory of the machine or the container."""

import os
from pathlib import Path
from typing import Final

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
