"""Counts what an operation costs each of several shards: `python -m bench.shards`, some ten minutes on two cores.

Each daemon runs under callgrind, which counts while a load runs and not while the daemon starts. All shards get the
same marks, and each has as many operations as a single daemon has: only the number of shards differs. What an idle
daemon does in that time is subtracted, because on the same cores several take longer than one. On a busy machine that
is too much, because there an idle daemon does less.
"""

import argparse
import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient, Outcome, ResultColumns

from bench.drivers.messages import TIMEOUT_MS
from bench.measure.instructions import UNIT, VALGRIND
from bench.measure.processes import ROOT, START_TIMEOUT_S, environment
from examples.free_ports import free_ports
from purgatory.service.translate.shards import shard_of

BATCH: Final = 500
WARM_UP: Final = 4
IDLE_S: Final = 20.0
PARTITION: Final = "bench-0"


class CountedShard:
    """A daemon under callgrind."""

    def __init__(self, folder: Path, targets: Sequence[str], shard: int) -> None:
        self._report: Final = folder / f"{shard}.log"
        self._ready: Final = folder / f"{shard}.ready"
        # One shard is a daemon without the setting.
        flags = ["--fleet-targets", " ".join(targets), "--fleet-shard", str(shard)] if len(targets) > 1 else []
        flags += ["--grpc-address", targets[shard], "--http-address", "127.0.0.1:0", "--ready-file", str(self._ready)]
        command = [*VALGRIND, "--instr-atstart=no", sys.executable, "-m", "purgatory", "serve", *flags]
        with self._report.open("w", encoding="utf-8") as report:
            self._process: Final = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=report, stderr=report)

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + 4 * START_TIMEOUT_S
        while not self._ready.exists():
            assert time.monotonic() < deadline_s, self._report.read_text("utf-8")
            time.sleep(0.1)

    def set_counting(self, *, on: bool) -> None:
        state = "--instr=on" if on else "--instr=off"
        subprocess.run(["callgrind_control", state, str(self._process.pid)], check=True, capture_output=True)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def instructions(self) -> int:
        found = re.search(r"Collected\s*:\s*(\d+)", text := self._report.read_text("utf-8"))
        assert found is not None, text
        return int(found[1])


def main() -> None:
    """Count, and print a line for each number of shards."""
    parser = argparse.ArgumentParser("python -m bench.shards", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, default=40, help=f"of {BATCH} operations, at each shard (default: 40)")
    given = parser.parse_args()
    asyncio.run(run(given.shards, given.batches))


async def run(counts: Sequence[int], batches: int) -> None:
    (idle,), seconds = await counted(1, 0)
    idle_per_s = idle / seconds
    print(f"idle: {idle_per_s:,.0f} instructions/s", flush=True)
    for count in counts:
        found, seconds = await counted(count, batches)
        each = ", ".join(f"{(one - idle_per_s * seconds) / (batches * BATCH):,.0f}" for one in found)
        print(f"{count} shards: {each} {UNIT}, in {seconds:.0f} s", flush=True)


async def counted(count: int, batches: int) -> tuple[list[int], float]:
    """The instructions of each shard for these batches, and how many seconds they took. Without any: of idle shards."""
    targets = [f"127.0.0.1:{port}" for port in free_ports(count)]
    with tempfile.TemporaryDirectory(prefix="purgatory-bench-") as folder:
        shards = [CountedShard(Path(folder), targets, shard) for shard in range(count)]
        try:
            seconds = await load(targets, shards, batches)
        finally:
            for shard in shards:
                shard.stop()
        return [shard.instructions() for shard in shards], seconds


async def load(targets: Sequence[str], shards: Sequence[CountedShard], batches: int) -> float:
    """Register batches at all shards, and end each of them with one mark, which all shards get. Return the seconds."""
    for shard in shards:
        await asyncio.to_thread(shard.wait_ready)
    async with contextlib.AsyncExitStack() as stack:
        clients: list[AsyncClient] = []
        while len(clients) < len(targets):
            client = await stack.enter_async_context(
                AsyncClient(targets[len(clients)], open_timeout=START_TIMEOUT_S, give_up_after=None)
            )
            if shard_of(client.session_id, len(targets)) == len(clients):
                clients.append(client)
        steps = Steps(clients)
        await steps.run(WARM_UP)
        began_s = time.monotonic()
        for shard in shards:
            await asyncio.to_thread(shard.set_counting, on=True)
        await steps.run(batches)
        if not batches:
            await asyncio.sleep(IDLE_S)
        seconds = time.monotonic() - began_s
        for shard in shards:
            await asyncio.to_thread(shard.set_counting, on=False)
        await steps.cancel()
    return seconds


class Steps:
    """Ends a batch at all shards with each mark. The next batch is always registered before the mark arrives."""

    def __init__(self, clients: Sequence[AsyncClient]) -> None:
        self._clients: Final = clients
        self._mark = 0
        self._pending: asyncio.Future[list[ResultColumns]] = self._registered()

    def _registered(self) -> "asyncio.Future[list[ResultColumns]]":
        offsets = range(self._mark + 1, self._mark + BATCH + 1)
        return asyncio.gather(
            *(one.produce_many([PARTITION], offsets=offsets, timeouts_ms=[TIMEOUT_MS]) for one in self._clients)
        )

    async def cancel(self) -> None:
        """Give up the batch that is still registered."""
        self._pending.cancel()
        await asyncio.gather(self._pending, return_exceptions=True)

    async def run(self, batches: int) -> None:
        for _ in range(batches):
            ending, self._mark = self._pending, self._mark + BATCH
            self._pending = self._registered()
            await asyncio.sleep(0)
            await self._clients[0].advance(PARTITION, high_watermark=self._mark)
            assert all(found.outcomes.count(Outcome.SATISFIED) == BATCH for found in await ending)


if __name__ == "__main__":
    main()
