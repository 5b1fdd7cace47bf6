"""Command line of the simulator: which seeds, how many steps for each, and over how many processes."""

import argparse
import functools
import gc
import multiprocessing
import secrets
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from types import FrameType

from tests.simulator import lives
from tests.simulator.lives import SeedResult

EXAMPLE = "python -m tests.simulator --seed 7 --steps 20000 [--seeds 100 --processes 2]"
SHRINK_SECONDS = 10.0


class Summary:
    """The sum of many seeds' results, in order."""

    def __init__(self) -> None:
        self.seeds = 0
        self.steps = 0
        self.ended = 0
        self.trace = 0
        self.began = time.monotonic()

    def add(self, life: SeedResult) -> None:
        """Add one seed's result. A single seed's trace is used unchanged."""
        self.trace = life.trace if self.seeds == 0 else (self.trace * 31 + life.trace) & 0xFFFFFFFF
        self.seeds += 1
        self.steps += life.steps
        self.ended += life.ended

    def __str__(self) -> str:
        seconds = time.monotonic() - self.began
        speed = f"{self.steps / max(seconds, 1e-9):.0f} steps/s"
        return f"{self.steps} steps, {self.ended} operations ended, {seconds:.1f} s, {speed}"


def live_all(lived: Iterable[SeedResult], first: int, progress_every: int) -> Summary:
    """Add results as they arrive. Prints the first failure and exits with 1."""
    summary = Summary()
    for life in lived:
        if life.report:
            print(life.report, flush=True)
            sys.exit(1)
        summary.add(life)
        if progress_every and summary.seeds % progress_every == 0:
            print(f"seeds {first} to {life.seed}: {summary}, trace {summary.trace:08x}", flush=True)
    return summary


def stop(number: int, frame: FrameType | None) -> None:
    """Exit normally, so that the other processes end too."""
    sys.exit(f"stopped by {signal.Signals(number).name}")


def let_stop() -> None:
    """For worker processes, which have nothing to clean up on SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=EXAMPLE)
    parser.add_argument("--seed", type=int, default=None, help="first seed (default: a random one)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first on (default 1)")
    parser.add_argument("--steps", type=int, default=20_000, help="steps for each seed (default 20000)")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time (default 1)")
    parser.add_argument("--progress", type=int, default=0, help="print a line after this many seeds (default: never)")
    parser.add_argument("--shrink-seconds", type=float, default=SHRINK_SECONDS, help="time to cut a failure down")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulator. The last line is one hex word: a hash over all ended operations, in order."""
    given = parse(arguments)
    gc.freeze()
    gc.set_threshold(100_000)  # a run leaves little in cycles: only the engine itself, once
    first = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {first}", flush=True)
    seeds = range(first, first + given.seeds)
    live = functools.partial(lives.live, steps_max=given.steps, shrink_seconds=given.shrink_seconds)
    if given.processes == 1:
        summary = live_all(map(live, seeds), first, given.progress)
    else:
        signal.signal(signal.SIGTERM, stop)
        with multiprocessing.Pool(given.processes, let_stop) as pool:
            summary = live_all(pool.imap(live, seeds, chunksize=4), first, given.progress)
    print(summary)
    print(f"{summary.trace:08x}")


if __name__ == "__main__":
    main()
