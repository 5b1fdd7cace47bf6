"""Runs the demonstration, and narrates it as it happens. Exit code 1 if a wait has an unexpected outcome."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient, Outcome
from purgatory_client.errors import NotFound
from purgatory_client.results import Result
from purgatory_client.sources.log_positions import lsn_of_offset

from examples.local_daemon import serving
from examples.local_postgres import LocalPostgres, LocalServer, NoPostgres

LAG: Final = "1500ms"
DOWN_S: Final = 3.0
PATIENCE_S: Final = 60.0


class Story:
    """Prints each step with the seconds since the beginning, and counts unexpected outcomes."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Final = client
        self._began: Final = time.monotonic()
        self.wrong = 0

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.2f} s  {text}", flush=True)

    async def ends(self, what: str, wait: Awaitable[Result], should: Outcome = Outcome.SATISFIED) -> None:
        """Wait, and print the outcome and the time it took."""
        result = await wait
        self.say(f"  {what:<28} {result.outcome.name.lower()} after {result.waited * 1000:.0f} ms")
        if result.outcome is not should:
            self.wrong += 1
            self.say(f"  {'':<28} should have been {should.name.lower()}")

    async def tell_stale(self) -> None:
        """Print the stale marks, with duration and reason."""
        async for mark in self._client.partitions(prefix="pg/main/"):
            if mark.stale_for is not None:
                self.say(f"  {mark.topic:<28} stale for {mark.stale_for:.1f} s: {mark.stale_reason}")

    async def until_seen(self) -> None:
        """Wait until the source has reported the positions of all replicas."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if (await self._client.partition("pg/main/all")).stale_for is None:
                        return
                except NotFound:
                    pass
                await asyncio.sleep(0.05)


def write(primary: LocalServer) -> int:
    """Commit a row; returns the end of the log after it."""
    primary.query("INSERT INTO orders VALUES (now())")
    return primary.position()


async def tell(story: Story, client: AsyncClient, servers: LocalPostgres) -> None:
    """Run the scenes in order."""
    primary, lagging = servers.servers["p"], servers.servers["r2"]
    await story.until_seen()
    end = write(primary)
    story.say(f"1. a row is written, the log ends at {lsn_of_offset(end)}; r2 replays {LAG} later")
    waits = {name: client.produce({f"pg/main/{name}": end}, timeout=20) for name in ("r1", "any", "all")}
    await asyncio.gather(*(story.ends(f"wait pg/main/{name}", wait) for name, wait in waits.items()))

    write(primary)
    story.say("2. one more; waiting for everything that was written before now, whoever wrote it")
    await story.ends("caught up: pg/main/all", client.wait_for(await client.ends(["pg/main/all"]), timeout=20))

    lagging.stop(signal.SIGQUIT)
    end = write(primary)
    story.say("3. r2 goes down, and a row is written")
    await story.ends("wait pg/main/any", client.produce({"pg/main/any": end}, timeout=20))
    going_on = asyncio.create_task(client.produce({"pg/main/all": end}, timeout=PATIENCE_S))
    await story.ends(
        f"wait pg/main/all for {DOWN_S:.0f} s", client.produce({"pg/main/all": end}, timeout=DOWN_S), Outcome.EXPIRED
    )
    await story.tell_stale()
    story.say("   r2 is started again; nobody tells the daemon")
    lagging.start(is_awaited=False)
    await story.ends("the wait that went on", going_on)
    await story.until_seen()
    await story.tell_stale()


async def run(folder: Path) -> int:
    """Run everything; returns the number of waits with an unexpected outcome."""
    print("starting PostgreSQL: p is the primary, r1 and r2 are its replicas ...", flush=True)
    with LocalPostgres() as servers:
        primary = servers.primary()
        primary.query("CREATE TABLE orders (at timestamptz)")
        servers.replica("r1", primary)
        lagging = servers.replica("r2", primary)
        lagging.query(f"ALTER SYSTEM SET recovery_min_apply_delay = '{LAG}'")
        lagging.query("SELECT pg_reload_conf()")
        print(f"purgatory serve --source '{servers.source_uri()}'", flush=True)
        async with serving(folder, "--source", servers.source_uri()) as address, AsyncClient(address) as client:
            story = Story(client)
            await tell(story, client, servers)
    print("all waits ended as they should" if not story.wrong else f"{story.wrong} waits did not end as they should")
    return story.wrong


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with tempfile.TemporaryDirectory(prefix="postgres-demo-") as name:
        try:
            sys.exit(1 if asyncio.run(run(Path(name))) else 0)
        except NoPostgres as error:
            sys.exit(f"postgres-demo: {error}")
