"""One attack on a real daemon: an honest client before, during and after it, and the daemon's memory and open files."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from purgatory.service.access.tokens import add_token
from tests.daemon_process import DaemonProcess, daemon_environment
from tests.hostile.honest import percentile
from tests.webhooks.callbacks import webhook_flags

BUDGET_BYTES: Final = 512 * 1024 * 1024
POLICY: Final = """
loopback_principal = "honest"

[[grant]]
to = ["honest"]
roles = ["wait", "advance", "observe"]
topics = ["honest"]

[[grant]]
to = ["attacker"]
roles = ["wait", "advance", "observe"]
topics = ["attack*", "f*"]
keys = ["attack*"]
"""
NO_REFUSALS: Final = frozenset({"OK", "resets", "pages", "held", "due", "started", "closed", "undelivered"})
"""What tallies count besides refused calls."""
WATCH_INTERVAL_S: Final = 0.05
SETTLE_S: Final = 6.0
"""How long the honest client is watched after an attack, where that is not said."""
WINDOW_S: Final = 1.0
STEP_S: Final = 0.25
"""The honest client is back to normal with the first second whose p99 is at most `CALM` times its p99 before."""
SATURATION_S: Final = 2.0
CALM: Final = 3.0
CALM_MS_MIN: Final = 20.0


Command = Callable[["Arena", float], list[str]]
"""The program of an attacker and its arguments, for whom it attacks and how many seconds."""


@dataclass
class AttackReport:
    """What an attack did to the daemon and to an honest client. Times in milliseconds, memory in megabytes."""

    name: str
    tally: dict[str, int] = field(default_factory=dict)
    memory_before_mb: int = 0
    memory_peak_mb: int = 0
    files_peak: int = 0
    waits: int = 0
    waits_under: int = 0
    """Of those, the ones that `under_ms` is made of."""
    faults: list[str] = field(default_factory=list)
    """What honest waits ended with that were not satisfied."""
    alone_ms: tuple[float, float] = (0.0, 0.0)
    """p50 and p99 before the attack."""
    control_ms: tuple[float, float] = (0.0, 0.0)
    """The same while the attack runs against another daemon: what the attacker's own work costs this machine."""
    under_ms: tuple[float, float] = (0.0, 0.0)
    recovery_s: float = 0.0

    @property
    def undelivered(self) -> int:
        """Honest webhooks that did not arrive."""
        return self.tally.get("undelivered", 0)

    @property
    def refused(self) -> int:
        return sum(count for status, count in self.tally.items() if status not in NO_REFUSALS)

    @property
    def ratio(self) -> float:
        """p99 under attack beside p99 with the attacker's work going elsewhere."""
        return self.under_ms[1] / max(self.alone_ms[1], self.control_ms[1], 1.0)

    @property
    def bare_ratio(self) -> float:
        """p99 under attack beside p99 alone: what an attacker takes who has no processor of its own."""
        return self.under_ms[1] / max(self.alone_ms[1], 1.0)


class Arena:
    """A daemon with a policy, an honest caller from loopback, and a token for the attacker. Webhooks may go to
    127.0.0.1 to 127.0.0.99.
    """

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True)
        policy, tokens = folder / "policy.toml", folder / "tokens"
        policy.write_text(POLICY, "utf-8")
        self.token: Final = add_token(tokens, "attacker")
        access = ["--access-policy-file", str(policy), "--access-tokens-file", str(tokens)]
        scrapes = ["--http-metrics-interval-ms", "1000"]  # the default: other tests read each moment
        budget = ["--limits-memory-bytes-max", str(BUDGET_BYTES)]
        hosts = " ".join(f"127.0.0.{number}:*" for number in range(1, 100))
        webhooks = webhook_flags(folder, hosts=hosts, retry_ms=5_000)  # the default: other tests retry at once
        self.daemon: Final = DaemonProcess(folder, [*access, *budget, *scrapes, *webhooks, *settings])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.daemon.kill()

    def memory_mb(self) -> int:
        """Resident memory of the daemon."""
        status = Path(f"/proc/{self.daemon.process.pid}/status").read_text("ascii")
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024

    def files(self) -> int:
        """Open files of the daemon."""
        return sum(1 for _ in Path(f"/proc/{self.daemon.process.pid}/fd").iterdir())


def start(*arguments: str) -> subprocess.Popen[str]:
    """A Python program of this package as a process that gives way to the daemon."""
    return subprocess.Popen(
        ["nice", "-n", "10", sys.executable, "-m", *arguments],
        env=daemon_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def attacker(name: str) -> Command:
    """One of `attackers.ATTACKS` or `receiver_attackers.ATTACKS`."""
    module = "receiver_attackers" if name.endswith("-receivers") else "attackers"
    return lambda arena, seconds: [
        f"tests.hostile.{module}", name, arena.daemon.address, arena.daemon.http_address, str(seconds), arena.token
    ]  # fmt: skip


def flooder(method: str, calls_per_second: float) -> Command:
    """One of `floods.flood_calls.FLOODS`; 0 calls a second: one for each that ends."""
    return lambda arena, seconds: [
        "tests.hostile.floods", method, arena.daemon.address, arena.token, str(seconds), str(calls_per_second)
    ]  # fmt: skip


def saturation(arena: Arena, method: str) -> float:
    """How many such calls a second an otherwise idle daemon serves, beside an attacker on the same processors."""
    served = run(arena, flooder(method, 0)(arena, SATURATION_S)).get("OK", 0)
    return max(1.0, served / SATURATION_S)


def attack(
    arena: Arena,
    name: str,
    seconds: float,
    elsewhere: Arena | None = None,
    settle_s: float = SETTLE_S,
    command: Command | None = None,
) -> AttackReport:
    """Runs one attack for so many seconds, `elsewhere` first if that is given, and says what it did. `command` is the
    attacker's; by default it is the one of that name.

    Raises AssertionError when the daemon does not survive it.
    """
    report, command = AttackReport(name), command or attacker(name)
    honest = start("tests.hostile.honest", arena.daemon.address)
    assert honest.stdin is not None
    assert honest.stdout is not None
    assert honest.stdout.readline() == "ready\n", "the honest client could not begin"
    try:
        time.sleep(1.0)  # connections, and code that runs for the first time
        alone_s = time.monotonic()
        time.sleep(min(4.0, seconds))
        control_s = time.monotonic()
        if elsewhere is not None:
            run(elsewhere, command(elsewhere, seconds))
        begin_s = time.monotonic()
        report.memory_before_mb = arena.memory_mb()
        report.tally = run(arena, command(arena, seconds), report)
        end_s = time.monotonic()
        watch(arena, report, end_s + settle_s)
    finally:
        seen, _ = honest.communicate()
    assert arena.daemon.process.poll() is None, f"the daemon has ended:\n{arena.daemon.log[-3_000:]}"
    waits: list[tuple[float, float | str]] = json.loads(seen)
    report.waits = len(waits)
    report.faults = [said for _, said in waits if isinstance(said, str)]
    report.alone_ms = latencies(waits, alone_s, control_s)
    if elsewhere is not None:  # not what the attacker's process took to start
        report.control_ms = latencies(waits, begin_s - seconds, begin_s)
        begin_s = end_s - seconds
    report.under_ms = latencies(waits, begin_s, end_s)
    report.waits_under = sum(begin_s <= began_s < end_s for began_s, _ in waits)
    report.recovery_s = recovery_s(waits, end_s, max(CALM_MS_MIN, CALM * report.alone_ms[1]))
    return report


def run(arena: Arena, command: list[str], report: AttackReport | None = None) -> dict[str, int]:
    """An attacker in a process of its own, until it ends by itself; the daemon is watched meanwhile."""
    process = start(*command)
    while process.poll() is None:
        watch(arena, report, time.monotonic() + WATCH_INTERVAL_S)
    said, _ = process.communicate()
    assert process.returncode == 0, f"the attacker {command[:2]} failed with {process.returncode}"
    tally: dict[str, int] = json.loads(said)
    return tally


def watch(arena: Arena, report: AttackReport | None, until_s: float) -> None:
    """Notes the most memory and open files that the daemon takes until then."""
    while True:
        if report is not None:
            with suppress(FileNotFoundError, StopIteration, ProcessLookupError):
                report.memory_peak_mb = max(report.memory_peak_mb, arena.memory_mb())
                report.files_peak = max(report.files_peak, arena.files())
        if time.monotonic() >= until_s:
            return
        time.sleep(WATCH_INTERVAL_S)


def latencies(waits: list[tuple[float, float | str]], begin_s: float, end_s: float) -> tuple[float, float]:
    """p50 and p99 of the waits that began in a span of time."""
    found = [took for began, took in waits if begin_s <= began < end_s and not isinstance(took, str)]
    return percentile(found, 0.5), percentile(found, 0.99)


def recovery_s(waits: list[tuple[float, float | str]], end_s: float, calm_ms: float) -> float:
    """How long after the attack the first second began whose p99 was calm; `SETTLE_S` when there was none."""
    starts_s = [end_s + STEP_S * step for step in range(int((SETTLE_S - WINDOW_S) / STEP_S) + 1)]
    calm_s = [start_s for start_s in starts_s if latencies(waits, start_s, start_s + WINDOW_S)[1] <= calm_ms]
    return calm_s[0] - end_s if calm_s else SETTLE_S
