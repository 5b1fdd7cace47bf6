"""A caller with an outbox that logs each step as one line, at once; it is killed and restarted, and its log is checked.

`python -m tests.client.outbox.outbox_killed ADDRESS FOLDER LIFE COUNT` is the caller: it submits COUNT waits (0: only
collects, and exits when nothing is left).
"""

import asyncio
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from purgatory_client import AsyncClient, Client, Ticket, batches, waits
from purgatory_client.outbox import outbox_file

from tests.client.test_blocking import environment
from tests.kit.daemon import StartedProcess
from tests.kit.eventually import PATIENCE_S

ROOT = Path(__file__).parents[3]
PARTITIONS = 4
OFFSET_MAX = 1_000


class Caller:
    def __init__(self, client: AsyncClient, folder: Path, life: int) -> None:
        self.client = client
        self.life = life
        self.random = random.Random(life)
        self.log = (folder / "caller.log").open("a", encoding="utf-8", buffering=1)

    async def live(self, count: int) -> None:
        tasks: list[asyncio.Task[object]] = []
        for ticket in await self.client.recovered():
            self.log.write(f"recovered {name_of(ticket)}\n")
            tasks.append(asyncio.create_task(self.collect(ticket)))
        for number in range(count):
            ticket = await self.submit(f"{self.life}-{number}")
            self.log.write(f"submitted {name_of(ticket)}\n")
            tasks.append(asyncio.create_task(self.collect(ticket)))
            if not number % 3:
                # Its result is not requested again: this call is the only caller.
                tasks.append(asyncio.create_task(self.client.produce({"plain-0": 1}, timeout=0.05)))
        await asyncio.gather(*tasks)

    async def submit(self, tag: str) -> Ticket:
        """Submit one wait, or a small batch. Some are satisfied, and some are not."""
        timeout = self.random.choice([0.2, 60.0])
        offset = self.random.randint(1, OFFSET_MAX if timeout > 1 else OFFSET_MAX * 1_000)
        partition = f"p-{self.random.randrange(PARTITIONS)}"
        if self.random.random() < 0.7:
            return await self.client.submit(waits.produce({partition: offset}, timeout=timeout), tag)
        offsets = [offset, self.random.randint(1, OFFSET_MAX), offset]
        batch = batches.produce([partition], offsets=offsets, timeouts_ms=[round(timeout * 1_000)])
        return await self.client.submit_many(batch, tag)

    async def collect(self, ticket: Ticket) -> None:
        """Log the result before confirming it, and then log the confirmation."""
        if ticket.is_batch:
            outcomes = (await self.client.result_many(ticket)).outcomes
        else:
            outcomes = [(await self.client.result(ticket)).outcome.value]
        self.log.write(f"result {name_of(ticket)} {','.join(map(str, outcomes))}\n")
        await self.client.confirm(ticket)
        self.log.write(f"confirmed {name_of(ticket)}\n")


def name_of(ticket: Ticket) -> str:
    return ticket.tag or f"plain-{ticket.operation_id}"


class Killed:
    """The caller, killed and restarted while the test advances the marks."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.log = folder / "caller.log"
        self.log.touch()
        self.high_watermark = 0

    def live(self, daemon: StartedProcess, life: int, count: int) -> subprocess.Popen[str]:
        """Start a new process of the caller."""
        command = [sys.executable, "-m", "tests.client.outbox.outbox_killed", daemon.address, str(self.folder)]
        command += [str(life), str(count)]
        return subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)

    def advance(self, client: Client, step: int) -> None:
        self.high_watermark = min(OFFSET_MAX, self.high_watermark + step)
        for partition in range(PARTITIONS):
            client.advance(f"p-{partition}", high_watermark=self.high_watermark)

    def kill_at_random(self, daemon: StartedProcess, life: int) -> None:
        """Run the caller until it has logged a random number of lines, then kill it."""
        with self.live(daemon, life, 100_000) as process, Client(daemon.address) as client:
            lines = len(self.lines()) + self.random.randint(0, 100)
            deadline = time.monotonic() + PATIENCE_S
            try:
                while len(self.lines()) < lines:
                    assert process.poll() is None, process.stderr.read() if process.stderr else ""
                    assert time.monotonic() < deadline, f"the caller wrote {len(self.lines())} lines, not {lines}"
                    self.advance(client, 1)
                    time.sleep(self.random.uniform(0, 0.01))
            finally:
                process.kill()

    def finish(self, daemon: StartedProcess) -> None:
        """Run the caller a last time: it collects the remaining results and exits by itself."""
        with self.live(daemon, 0, 0) as process, Client(daemon.address) as client:
            self.advance(client, OFFSET_MAX)
            try:
                _, error = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the caller did not end; the daemon says\n{client.status()}") from None
            finally:
                process.kill()
            assert process.returncode == 0, error

    def lines(self) -> list[str]:
        """The complete lines of the caller's log."""
        return self.log.read_text("utf-8").rpartition("\n")[0].splitlines()

    def check(self) -> set[str]:
        """Check that each wait ended, always with the same result, and never reappeared once confirmed. Returns the
        tags.
        """
        outcomes: dict[str, set[str]] = defaultdict(set)
        seen, confirmed = set(), set()
        for line in self.lines():
            what, tag, *rest = line.split()
            assert tag not in confirmed, f"{line!r} after it was confirmed"
            seen.add(tag)
            if what == "result":
                outcomes[tag].add(rest[0])
            elif what == "confirmed":
                confirmed.add(tag)
        assert seen == set(outcomes), f"without a result: {seen - set(outcomes)}"
        ambiguous = {tag: ends for tag, ends in outcomes.items() if len(ends) > 1}
        assert not ambiguous, f"ended in more than one way: {ambiguous}"
        return seen


async def main(address: str, folder: Path, life: int, count: int) -> None:
    async with AsyncClient(address, outbox=folder / "outbox.db") as client:
        await Caller(client, folder, life).live(count)


if __name__ == "__main__":
    setattr(outbox_file, "IDS_SKIPPED_MAX", 1)  # noqa: B010 - Final; no ids are skipped, since the test counts them
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
