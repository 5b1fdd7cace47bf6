"""`make fleet-demo`: two daemons over one log, under load, while one is killed, one is stopped and one hands over.

It prints what callers saw, which is nothing but time, and checks the log. `ARGS=--kafka`: over three brokers instead of
PostgreSQL.
"""

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from purgatory_client import AsyncClient, Outcome, errors

from examples.free_ports import free_port
from examples.kafka_cluster import KafkaCluster
from examples.local_postgres import LocalPostgres

WAITS_PER_S: Final = 200
TIMEOUT_S: Final = 600
PAUSE_S: Final = 0.05
START_S: Final = 60
PURGATORY: Final = (sys.executable, "-m", "purgatory")


class Member:
    """One of the two daemons, and its supervisor."""

    def __init__(self, name: str, folder: Path, log: str) -> None:
        self.name: Final = name
        self.address: Final = f"127.0.0.1:{free_port()}"
        self.http_address: Final = f"127.0.0.1:{free_port()}"
        self._folder: Final = folder
        self._log: Final = log
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{self.name}.log").open("a") as log:
            return subprocess.Popen(
                [
                    *PURGATORY, "serve", "--grpc-address", self.address, "--http-address", self.http_address,
                    "--data-dir", str(self._folder / self.name), "--fleet-log", self._log,
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip

    def supervise(self) -> None:
        """Start it again if it has ended."""
        if self.process.poll() is not None:
            self.process = self._start()

    def is_leading(self) -> bool:
        return self._answers("/leaderz")

    def is_ready(self) -> bool:
        return self._answers("/readyz")

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(URLError, OSError), urlopen(f"http://{self.http_address}{path}", timeout=1) as answer:
            return bool(answer.status == 200)
        return False

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Load:
    """Waits and marks for as long as it runs. Every wait is answered by a mark that is reported after it."""

    def __init__(self, addresses: str) -> None:
        self._addresses: Final = addresses
        self.answered = 0
        self.wrong: Final[list[str]] = []
        self.longest_s = 0.0
        """The longest time from a report to the answer of its wait, since it was last set to 0."""
        self._offset = 0
        self._is_ending = False

    async def run(self) -> None:
        async with AsyncClient(self._addresses) as client, asyncio.TaskGroup() as group:
            while not self._is_ending:
                group.create_task(self._wait(client, self._offset))
                self._offset += 1
                await asyncio.sleep(1 / WAITS_PER_S)

    def end(self) -> None:
        self._is_ending = True

    async def _wait(self, client: AsyncClient, offset: int) -> None:
        wait = asyncio.create_task(client.produce({f"orders-{offset % 8}": offset}, timeout=TIMEOUT_S))
        began_s = time.monotonic()
        while True:
            with contextlib.suppress(errors.Unavailable):
                await client.advance(f"orders-{offset % 8}", high_watermark=offset)
                break
            await asyncio.sleep(PAUSE_S)
        result = await wait
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        self.answered += 1
        if result.outcome is not Outcome.SATISFIED:
            self.wrong.append(f"{offset}: {result.outcome.name}")


@contextlib.contextmanager
def log_in(folder: Path, *, is_kafka: bool) -> Iterator[str]:
    """Start the servers of the log, and return its address."""
    print("starting three Kafka brokers" if is_kafka else "starting PostgreSQL and a replica of it", flush=True)
    if is_kafka:
        with KafkaCluster(folder / "kafka", 3) as cluster:
            yield f"kafka://{cluster.bootstrap}/purgatory"
    else:
        with LocalPostgres() as servers:
            primary = servers.primary()
            servers.replica("replica", primary)
            primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.query("SELECT pg_reload_conf()")
            yield f"postgresql://postgres@{primary.address}/postgres"


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds, for at most `START_S`."""
    try:
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process cannot set an event
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise SystemExit(f"timed out waiting until {what}") from None


async def fault(members: list[Member], load: Load, what: str, act: Callable[[Member], None]) -> None:
    """Do something to the leader, and print how long callers waited until another one led and answered."""
    (leader,) = [member for member in members if await asyncio.to_thread(member.is_leading)]
    (other,) = [member for member in members if member is not leader]
    await until(other.is_ready, f"{other.name} stands by")
    load.longest_s, before = 0.0, load.answered
    print(f"{what} {leader.name}", end="", flush=True)
    await asyncio.to_thread(act, leader)
    await until(other.is_leading, f"{other.name} leads")
    answered = load.answered
    await until(lambda: load.answered > answered, "callers are answered again")
    await asyncio.sleep(1)  # the other waits of the meantime too
    if leader.process.poll() is None:
        leader.process.send_signal(signal.SIGCONT)
        await until(lambda: leader.process.poll() is not None, f"{leader.name} finds that it was replaced, and exits")
    leader.supervise()
    print(f": {other.name} leads; {load.answered - before} waits answered, the slowest after {load.longest_s:.1f} s")


def hand_over(leader: Member) -> None:
    leader.process.send_signal(signal.SIGTERM)
    leader.process.wait()


async def show(members: list[Member]) -> Load:
    """Run the load and the faults."""
    await until(lambda: any(member.is_leading() for member in members), "a daemon leads")
    load = Load(",".join(member.address for member in members))
    running = asyncio.create_task(load.run())
    await until(lambda: load.answered > 0, "a wait is answered")
    await asyncio.sleep(2)
    print(f"before any fault: {load.answered} waits answered, the slowest after {load.longest_s:.1f} s")
    await fault(members, load, "kill -9", lambda leader: leader.process.kill())
    await fault(members, load, "stop", lambda leader: leader.process.send_signal(signal.SIGSTOP))
    await fault(members, load, "hand over from", hand_over)
    load.end()
    await running
    await until(lambda: all(member.is_ready() for member in members), "the last daemon stands by")
    return load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="three Kafka brokers instead of PostgreSQL")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, log_in(Path(name), is_kafka=given.kafka) as log:
        subprocess.run([*PURGATORY, "fleet", "init", log], check=True)
        members = [Member(one, Path(name), log) for one in ("a", "b")]
        try:
            load = asyncio.run(show(members))
            print(f"{load.answered} waits, each answered once; wrong: {load.wrong or 'none'}", flush=True)
            subprocess.run([*PURGATORY, "fleet", "status", *(member.http_address for member in members)], check=False)
        finally:
            for member in members:
                member.end()
        subprocess.run([*PURGATORY, "fleet", "verify", log], check=True)
    if load.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
