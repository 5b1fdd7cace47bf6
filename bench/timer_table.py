"""Nanoseconds for one operation of a timer, as percentiles: the wheel, and the timers of Kafka, Netty, Go, tokio and
the JDK (`java.util.Timer`, `DelayQueue`).

    make bench-timers                                            # 100,000 and 10 million pending: minutes, 3 GB
    make bench-timers ARGS="--pending 100000 --only wheel go"
    make bench-timers ARGS="--pending 1000 10000 100000 1000000 10000000 --plot docs/images/timers.png"

With `pending` timers whose deadlines are 10 to 20 minutes away, one is drawn at random, cancelled, and added again with
another deadline: `cancel` and `add`, each timed alone. Then a tenth as many timers get one deadline; `expire` is the
time from one of their callbacks to the next (for the wheel, which has none, of a call that takes one). All of it is
done twice, and the second time counts. The median time of reading the clock twice is subtracted.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.measure.processes import ROOT, Worker, WorkerFailed
from bench.measure.worker import Numbers
from bench.peers.jvm import JvmMissing, jvm_command
from bench.render.plots import write_timer_plot

__all__ = ["measured", "table"]

OPERATIONS: Final = ("add", "cancel", "expire")
PARTS: Final = ("p50", "p99", "p999")
BUILT: Final = ROOT / ".build" / "peers"


def program(path: str, tool: str, *build: str) -> list[str]:
    """Build this program; returns its command. Raises LookupError if the tool is not installed."""
    found = shutil.which(tool) or shutil.which(tool, path="/usr/local/go/bin")
    if found is None:
        raise LookupError(f"{tool} is not installed")
    subprocess.run([found, "build", *build], cwd=ROOT, check=True)
    return [path]


GO: Final = f"{BUILT}/go/timers"
CARGO: Final = ("--release", "-q", "--locked", "--manifest-path", "bench/peers/tokio/Cargo.toml")
PEERS: Final[dict[str, Callable[[], list[str]]]] = {
    "wheel": lambda: [sys.executable, "-m", "bench.subjects.timer_percentiles"],
    "kafka": lambda: jvm_command("kafka"),
    "netty": lambda: jvm_command("netty"),
    "util-timer": lambda: jvm_command("util-timer"),
    "delay-queue": lambda: jvm_command("delay-queue"),
    "go": lambda: program(GO, "go", "-o", GO, "bench/peers/go/timers.go"),
    "tokio": lambda: program(f"{BUILT}/tokio/release/timers", "cargo", *CARGO, "--target-dir", f"{BUILT}/tokio"),
}


def measured(peer: str, pending: int, samples: int) -> Numbers:
    """The numbers of a timer, and the peak memory of its process. Raises LookupError or JvmMissing."""
    with Worker(PEERS[peer]()) as worker:
        said = worker.run("timer-percentiles", pending=pending, samples=samples)
        status = Path(f"/proc/{worker.process_id}/status").read_text("utf-8")
        return {**said, "gigabytes": int(status.partition("VmHWM:")[2].split()[0]) * 1_024 / 1e9}


def line(peer: str, pending: int, said: Numbers) -> str:
    """A line of the table, without the time of reading the clock."""
    cells = [
        " / ".join(f"{max(0, said[f'{name}_{part}'] - said['clock_p50']):,.0f}" for part in PARTS)
        for name in OPERATIONS
    ]
    return f"| {peer} | {pending:,} | {' | '.join(cells)} | {said['clock_p50']:.0f} | {said['gigabytes']:.2g} |"


def table(peers: list[str], pendings: list[int], samples: int, plot: Path | None = None) -> list[str]:
    """The lines of the table, printed as they are measured. `plot`: where to draw the medians over `pendings`."""
    lines: list[str] = []
    points: list[dict[str, str | float]] = []
    print("| timer | pending | add p50 / p99 / p999, ns | cancel | expire | clock | GB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for pending in pendings:
        for peer in peers:
            try:
                said = measured(peer, pending, samples)
                lines.append(line(peer, pending, said))
                for name in OPERATIONS:
                    median_ns = max(1, said[f"{name}_p50"] - said["clock_p50"])
                    points.append({"timer": peer, "pending": pending, "operation": name, "median_ns": median_ns})
            except (LookupError, JvmMissing, WorkerFailed) as missing:
                lines.append(f"{peer} is skipped: {missing}")
            print(lines[-1], flush=True)
    if plot:
        write_timer_plot(points, plot)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.timer_table", description="Measure each operation of a timer.")
    parser.add_argument("--pending", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--samples", type=int, default=1_000_000, help="timers cancelled and added; a tenth expires")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), help="some of the timers")
    parser.add_argument("--plot", type=Path, help="draw the medians over --pending into this file")
    arguments = parser.parse_args()
    table(arguments.only, arguments.pending, arguments.samples, arguments.plot)
