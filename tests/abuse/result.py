"""The result of one abuse of a daemon: a row of the table, and the faults that make it fail."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.daemon import DaemonProcess

MEMORY_MB_MAX: Final = 600
RATIO_MAX: Final = 3.0
RECOVERY_S_MAX: Final = 2.0
NOT_REFUSED: Final = frozenset({"OK", "resets", "due", "started", "closed"})
"""Tally keys that do not count refused calls."""

HEADER: Final = (
    f"{'abuse':24} {'RSS MB':>10} {'p50/p99 alone':>14} {'elsewhere':>14} {'under it':>14} {'x':>5} {'bare x':>6} "
    f"{'calm after':>10}  lost, and other figures"
)

Tally = Counter[str]


@dataclass
class Result:
    """The effect of an abuse on the daemon and on an honest client. Latencies are p50 and p99 in milliseconds."""

    name: str
    tally: dict[str, int] = field(default_factory=dict)
    """Responses by status, and the attacker's other counts."""
    memory_before_mb: int = 0
    memory_peak_mb: int = 0
    waits: int = 0
    """Number of honest waits."""
    failed_waits: list[str] = field(default_factory=list)
    """Errors of honest waits that were not satisfied."""
    alone_ms: tuple[float, float] = (0.0, 0.0)
    """Before the attack."""
    control_ms: tuple[float, float] = (0.0, 0.0)
    """While the attack runs against another, idle daemon: the cost of the attacker's own work on this machine."""
    under_ms: tuple[float, float] = (0.0, 0.0)
    """During the attack."""
    recovery_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    """Reasons why the daemon failed; empty if it passed."""
    figures: str = ""
    """Other figures for the table."""

    @property
    def refused(self) -> int:
        return sum(count for status, count in self.tally.items() if status not in NOT_REFUSED)

    @property
    def ratio(self) -> float:
        """p99 under attack, relative to the p99 while the attack hits another daemon."""
        return self.under_ms[1] / max(self.alone_ms[1], self.control_ms[1], 1.0)

    @property
    def bare_ratio(self) -> float:
        """p99 under attack, relative to the p99 without one. It includes the processor time used by the attacker."""
        return self.under_ms[1] / max(self.alone_ms[1], 1.0)

    def judge(self, *, is_flood: bool) -> None:
        """Compare an attack's figures with the limits, and record violations as faults."""
        limits = {
            f"{len(self.failed_waits)} honest waits failed: {self.failed_waits[:1]}": bool(self.failed_waits),
            f"{self.memory_peak_mb} MB": self.memory_peak_mb > MEMORY_MB_MAX,
            f"p99 x {self.ratio:.1f}": is_flood and self.ratio > RATIO_MAX,
            f"back to normal after {self.recovery_s:.1f} s": self.recovery_s > RECOVERY_S_MAX,
        }
        self.faults += [fault for fault, is_exceeded in limits.items() if is_exceeded]

    def row(self) -> str:
        figures = self.figures
        if self.waits:
            alone, control, under = (
                f"{pair[0]:.1f}/{pair[1]:.0f} ms" if any(pair) else "-"
                for pair in (self.alone_ms, self.control_ms, self.under_ms)
            )
            started = f", {self.tally['started']} of {self.tally['due']} started" if "due" in self.tally else ""
            latencies = (
                f"{alone:>14} {control:>14} {under:>14} {self.ratio:>5.1f} {self.bare_ratio:>6.1f} "
                f"{self.recovery_s:>8.2f} s"
            )
            figures = f"{len(self.failed_waits)} of {self.waits}, {self.refused} refused{started}"
        else:
            latencies = " " * 68
        failed = f"   FAILS: {'; '.join(self.faults)}" if self.faults else ""
        return f"{self.name:24} {self.memory_before_mb:>4} {self.memory_peak_mb:>5} {latencies}  {figures}{failed}"


def memory_mb(daemon: DaemonProcess, field: str = "VmRSS") -> float:
    """Return the resident memory of a daemon in MiB; with the field VmHWM, its peak."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text("ascii")
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def start_peak(daemon: DaemonProcess) -> int:
    """Let the peak of a daemon's memory start from its present memory, in MiB, and return that."""
    Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5", "ascii")
    return round(memory_mb(daemon))


def open_files(daemon: DaemonProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{daemon.process.pid}/fd").iterdir())
