"""The history check: real brokers, a real source and a real daemon, all of them killed again and again.

`python -m tests.kafka.history --waits 100000 --seed 1` prints what was answered, and ends with 1 if anything was wrong.
"""

import argparse
import asyncio
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient, many
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.results import Outcome

from examples.kafka_cluster import KafkaCluster, free_ports
from tests.kafka.clients import ClusterClients
from tests.kafka.history_judge import Answer, Wrong, wrong_answers
from tests.kafka.history_load import PARTITIONS, TOPIC, HistoryLoad

SETTLE_S: Final = 5.0
"""A source that was killed is missed after 3 s of silence; until then nothing says that its marks are stale."""
BATCH: Final = 2000
SESSIONS: Final = 6
SETTINGS: Final[dict[str, object]] = {
    "broker.session.timeout.ms": 3000,
    "offsets.topic.num.partitions": 6,
    "min.insync.replicas": 1,
    "unclean.leader.election.enable": "false",
}


@dataclass
class HistoryReport:
    waits: int = 0
    satisfied: int = 0
    expired: int = 0
    stale: int = 0
    others: int = 0
    changes: int = 0
    faults: int = 0
    lost: int = 0
    wrong: list[Wrong] = field(default_factory=list)


class Programs:
    """The daemon, with its journal, and the source, as two processes that may be killed one by one."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        grpc, http = free_ports(2)
        self.address: Final = f"127.0.0.1:{grpc}"
        self._log: Final = (folder / "programs.log").open("w")
        serve = ["purgatory", "serve", "--grpc-address", self.address, "--http-address", f"127.0.0.1:{http}"]
        source = ["purgatory_sources", "kafka", bootstrap, "--to", self.address, "--state-dir", str(folder / "source")]
        self._commands: Final = {"daemon": [*serve, "--data-dir", str(folder / "journal")], "source": source}
        self._running: Final[dict[str, subprocess.Popen[bytes]]] = {}
        (folder / "source").mkdir()

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", *self._commands[name]]
        self._running[name] = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait()

    def end(self) -> None:
        for name in self._running:
            self.kill(name)
        self._log.close()


class Waiters:
    """Sessions of many waits each, around the present of the marks."""

    def __init__(self, client: AsyncClient, load: HistoryLoad, waits: int, seed: int) -> None:
        self.answers: Final[list[Answer]] = []
        self.outcomes: Final[list[int]] = []
        self._client: Final = client
        self._load: Final = load
        self._chance: Final = random.Random(seed)
        self._rounds: Final = iter(range(-(-waits // BATCH)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sessions:
            for _ in range(SESSIONS):
                sessions.create_task(self._session())

    async def _session(self) -> None:
        for number in self._rounds:
            await self._round(f"history-{number}")

    async def _round(self, session_id: str) -> None:
        chance, marks = self._chance, list(self._load.present)
        indexes = [chance.randrange(len(marks)) for _ in range(BATCH)]
        targets = [max(1, self._load.present[marks[index]] + chance.randint(-20, 150)) for index in indexes]
        timeouts_ms = [chance.choice((chance.randint(100, 3000), chance.randint(7000, 12_000))) for _ in indexes]
        batch = many.produce(marks, offsets=targets, indexes=indexes, timeouts_ms=timeouts_ms)
        registered_s = time.monotonic()
        await self._client.register(session_id, 1, batch)
        accepted_s = time.monotonic()
        seen: set[int] = set()
        async for collected in self._client.results(session_id):
            answered_s, results = time.monotonic(), collected.results
            for place, operation_id in enumerate(collected.operation_ids):
                if operation_id in seen:
                    continue
                seen.add(operation_id)
                wait, outcome = operation_id - 1, results.outcomes[place]
                self.outcomes.append(outcome)
                if outcome not in (Outcome.SATISFIED, Outcome.EXPIRED):
                    continue
                self.answers.append(
                    Answer(
                        marks[indexes[wait]], targets[wait], registered_s, accepted_s, timeouts_ms[wait] / 1000,
                        answered_s, outcome == Outcome.SATISFIED, results.stale_ms[place] >= 0,
                    )
                )  # fmt: skip
        assert len(seen) == BATCH, f"{session_id}: {BATCH - len(seen)} waits were never answered"


async def _faults(cluster: KafkaCluster, programs: Programs, seed: int, report: HistoryReport) -> None:
    chance = random.Random(seed)
    for fault in itertools.cycle(("source", "broker", "daemon")):
        await asyncio.sleep(chance.uniform(2.0, 5.0))
        if fault == "broker":
            broker = chance.choice(list(cluster.brokers))
            end = chance.choice((cluster.kill, cluster.stop))
            await asyncio.to_thread(end, broker)
            await asyncio.sleep(chance.uniform(0.0, 4.0))
            await asyncio.to_thread(cluster.start, broker)
        else:
            programs.kill(fault)
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            programs.start(fault)
        report.faults += 1


async def _check(
    folder: Path, cluster: KafkaCluster, waits: int, seed: int
) -> tuple[HistoryReport, Callable[[], list[Wrong]]]:
    report = HistoryReport(waits=waits)
    programs = Programs(folder, cluster.bootstrap)
    try:
        programs.start("daemon")
        programs.start("source")
        async with AsyncClient(programs.address, give_up_after=60.0) as client:
            with HistoryLoad(cluster.bootstrap, seed) as load:
                waiters = Waiters(client, load, waits, seed)
                await _until_fed(client, load)
                faults = asyncio.create_task(_faults(cluster, programs, seed, report))
                try:
                    await waiters.run()
                finally:
                    faults.cancel()
                    await asyncio.gather(faults, return_exceptions=True)
                    # A broker that was down when the faults ended; the load's last records must be acknowledged.
                    await asyncio.to_thread(cluster.start)
    finally:
        programs.end()
    report.lost, report.changes = load.lost, len(load.changes)
    report.satisfied = waiters.outcomes.count(Outcome.SATISFIED)
    report.expired = waiters.outcomes.count(Outcome.EXPIRED)
    report.others = len(waiters.outcomes) - report.satisfied - report.expired
    report.stale = sum(answer.is_stale for answer in waiters.answers)
    return report, partial(wrong_answers, load.changes, waiters.answers, SETTLE_S)


async def _until_fed(client: AsyncClient, load: HistoryLoad) -> None:
    """Until each group has committed and the source has told something of it."""
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.produce({("kafka/" + TOPIC, 0): 1}, timeout=1)).satisfied and all(
                    any(offset for (name, _), offset in load.present.items() if name == group)
                    for group, _ in load.present
                ):
                    return
            except PurgatoryClientError:  # the daemon is still starting
                await asyncio.sleep(0.1)


def run(folder: Path, waits: int, seed: int) -> HistoryReport:
    """Everything that it starts has ended when it returns. Raises ClusterUnavailable."""
    with KafkaCluster(folder / "brokers", 3, SETTINGS) as cluster:
        ClusterClients(cluster.bootstrap).create(TOPIC, PARTITIONS, 3)
        report, judge = asyncio.run(_check(folder, cluster, waits, seed))
    report.wrong = judge()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waits", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        report = run(Path(folder), options.waits, options.seed)
    for wrong in report.wrong[:20]:
        print(wrong)
    print(
        f"seed {options.seed}: {report.waits} waits, {report.satisfied} satisfied, {report.expired} expired "
        f"({report.stale} of them stale), {report.others} ended otherwise; {report.changes} changes, "
        f"{report.faults} faults, {report.lost} records lost; {len(report.wrong)} wrong answers"
    )
    return 1 if report.wrong or report.lost else 0


if __name__ == "__main__":
    sys.exit(main())
