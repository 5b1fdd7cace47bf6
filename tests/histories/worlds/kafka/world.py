"""Real brokers, a daemon and two sources under faults: any answer may be wrong, and any mark at the end."""

import asyncio
import itertools
import tempfile
import time
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient, batches
from purgatory_client.results import Outcome

from examples.kafka_cluster import KafkaCluster
from tests.histories.history import History
from tests.histories.judge import ReportedResult
from tests.histories.worlds.kafka.broker_logs import (
    BrokerLogs,
    marks_at_the_end,
    raised_steps,
    read_logs,
    steps_of_logs,
)
from tests.histories.worlds.kafka.faults import ALL, Faults, Programs
from tests.histories.worlds.kafka.judge import GONE, Answer, Mark, wrong_answers, wrong_lineages
from tests.histories.worlds.kafka.load import (
    LIVE,
    LIVE_TOPICS,
    PARTITIONS,
    PAYMENTS,
    TOPICS_OF,
    Load,
    Record,
    topic_mark,
)
from tests.kafka.clients import ClusterClients

PATHS = ("columns",)
FAULTS = ("kill",)
FEATURES = ("produce", "epoch")
WAITS: Final = 20_000
"""Waits per history."""
SETTLE_S: Final = 5.0
"""Silence of a killed source is detected after 3 s; until then its marks are not reported as stale."""
HOPS: Final = 5
"""Processes between a commit and its answer: two brokers, source, daemon, client. A busy machine may stall each of them
for as long as it stalls this process.
"""
START_S: Final = 300.0
END_S: Final = 60.0
"""After the last fault and commit, every mark must match the brokers within this time (seconds)."""
BATCH: Final = 2000
SESSIONS: Final = 6
NAMES_EPOCH: Final = 0.3
"""Share of the waits that name an epoch, as a client with a token does."""
NO_EPOCH: Final = -1
AROUND_S: Final = 15.0
SETTINGS: Final[dict[str, object]] = {
    "broker.session.timeout.ms": 3000,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 4,
    "min.insync.replicas": 1,
    "unclean.leader.election.enable": "false",
    "log.message.timestamp.type": "LogAppendTime",
    "log.segment.delete.delay.ms": 100_000_000,  # logs of deleted topics are read at the end
    "log.cleaner.enable": "false",
}


class KafkaWorld:
    """One run. The figures of the history count actions, faults and results."""

    def __init__(self, waits: int, history: History) -> None:
        self._seen: Final = history.seen
        self._judge_of_ends: Final = history.judge
        self.figures: Final = history.figures
        self.complaints: Final = history.judge.complaints
        self._record: Final = Record()
        self._seed: Final = history.seed
        self._random: Final = history.chance
        self._rounds: Final = iter(range(-(-waits // BATCH)))
        self._answers: Final[list[Answer]] = []
        """Every wait that was neither refused nor cancelled."""
        self._marks: dict[Mark, int] = {}
        """The daemon's marks at the end."""
        self._down: list[tuple[float, float]] = []
        self._stall_s = 0.0

    def run(self, folder: Path, faults: tuple[str, ...] = ALL) -> None:
        """Run the check. Everything it starts has ended when it returns. Raises ClusterUnavailable."""
        clock_s = time.monotonic() - time.time()
        with KafkaCluster(folder / "brokers", 3, SETTINGS) as cluster:
            clients = ClusterClients(cluster.bootstrap)
            for topic, count in PARTITIONS.items():
                clients.create(topic, count, 3)
            asyncio.run(self._observe(folder, cluster, faults))
            cluster.kill(*cluster.brokers)
            self._judge(read_logs(cluster, folder / "brokers", PARTITIONS, clock_s))

    async def _observe(self, folder: Path, cluster: KafkaCluster, kinds: tuple[str, ...]) -> None:
        with Programs(folder, cluster.bootstrap) as programs:
            async with AsyncClient(programs.address, give_up_after=60.0) as client:
                with Load(cluster.bootstrap, self._seed, self._record) as load:
                    await self._until_fed(client)
                    faults = Faults(cluster, programs, self._record, self._seed)
                    breaking = asyncio.create_task(asyncio.to_thread(faults.run, kinds))
                    measuring = asyncio.create_task(self._measure_stalls())
                    try:
                        async with asyncio.TaskGroup() as sessions:
                            for _ in range(SESSIONS):
                                sessions.create_task(self._wait(client))
                    finally:
                        measuring.cancel()
                        faults.ending.set()
                        await breaking
                    await asyncio.to_thread(load.run_dry)
                    # Members must reach the end, past the leftovers of transactions; nothing is written any more.
                    if not (await client.caught_up(LIVE, LIVE_TOPICS, timeout=END_S)).satisfied:
                        self.complaints.append(f"group {LIVE} was not caught up in {END_S:.0f} s")
                # Without a wait on each mark, ends of topics are polled only every 10 s.
                never = {mark: 1 << 40 for mark, offset in self._record.present.items() if offset != GONE}
                await client.produce(never, timeout=SETTLE_S)
                async for one in client.partitions(prefix="kafka/", page_size=10_000):
                    self._marks[one.topic, one.partition] = one.high_watermark
            self._down = programs.down
        self.figures.update({f"fault: {kind}": count for kind, count in faults.counts.items()})
        self.figures.update(self._record.tally)

    async def _measure_stalls(self) -> None:
        """Keep by how much the latest of short sleeps was late."""
        while True:
            begun_s = time.monotonic()
            await asyncio.sleep(0.05)
            self._stall_s = max(self._stall_s, time.monotonic() - begun_s - 0.05)

    async def _until_fed(self, client: AsyncClient) -> None:
        """Wait until each group has committed and a source has published a mark."""

        def has_committed(group: str) -> bool:
            marks = list(self._record.present.items())
            return any(name.startswith(f"kafka/{group}/") and offset > 0 for (name, _), offset in marks)

        async with asyncio.timeout(START_S):
            while not (await client.produce({topic_mark("orders", 0): 1}, timeout=1)).satisfied:
                pass
            while not all(map(has_committed, (*TOPICS_OF, LIVE))):  # noqa: ASYNC110 - changed by threads
                await asyncio.sleep(0.1)

    async def _wait(self, client: AsyncClient) -> None:
        """Register rounds of waits near the current values of all marks."""
        for number in self._rounds:
            await self._round(client, f"history-{number}")

    async def _round(self, client: AsyncClient, session_id: str) -> None:
        chance, marks = self._random, list(self._record.present)
        indexes = [chance.randrange(len(marks)) for _ in range(BATCH)]
        ahead = [chance.choice((chance.randint(-60, 0), chance.randint(1, 150))) for _ in indexes]
        targets = [max(1, self._record.present_of(marks[one]) + more) for one, more in zip(indexes, ahead, strict=True)]
        timeouts_ms = [chance.choice((chance.randint(100, 3000), chance.randint(7000, 12_000))) for _ in indexes]
        listed_s = time.monotonic()
        known = {(one.topic, one.partition): one.leader_epoch async for one in client.partitions(prefix="kafka/")}
        epochs = [known.get(marks[index], NO_EPOCH) if chance.random() < NAMES_EPOCH else NO_EPOCH for index in indexes]
        batch = batches.produce(marks, offsets=targets, indexes=indexes, timeouts_ms=timeouts_ms, leader_epochs=epochs)
        registered_s = time.monotonic()
        await client.register(session_id, 1, batch)
        accepted_s = time.monotonic()
        for wait, timeout_ms in enumerate(timeouts_ms):
            self._judge_of_ends.registering(session_id, wait + 1, timeout_ms, registered_s)
        answers, arrived = dict[int, Answer](), itertools.count(1)
        async for collected in client.results(session_id):
            answered_s, results = time.monotonic(), collected.results
            for place, operation_id in enumerate(collected.operation_ids):
                wait, stale_ms, outcome = operation_id - 1, results.stale_ms[place], Outcome(results.outcomes[place])
                is_over = outcome in (Outcome.SATISFIED, Outcome.EXPIRED)
                # Measured by the daemon, because its answer may have been delayed in transit.
                ended_s = accepted_s + results.waited_ms[place] / 1000 + 0.01
                answer = Answer(
                    marks[indexes[wait]], targets[wait], registered_s, accepted_s, timeouts_ms[wait] / 1000,
                    min(answered_s, ended_s), outcome == Outcome.SATISFIED,
                    stale_ms / 1000 if stale_ms >= 0 else None,
                    0 if is_over else results.error_codes[place] or -outcome,
                    None if epochs[wait] == NO_EPOCH else listed_s,
                )  # fmt: skip
                answers.setdefault(operation_id, answer)
                ended = ReportedResult(operation_id, outcome, results.waited_ms[place], answer)
                self._judge_of_ends.reported(session_id, "", next(arrived), ended, answered_s)
        self._answers.extend(answers.values())
        self._seen.pairs.update({("produce", "columns"): BATCH, ("produce", "kill"): BATCH})
        self._seen.note(["epoch"] * (BATCH - epochs.count(NO_EPOCH)), "columns", "kill")

    def _judge(self, logs: BrokerLogs) -> None:
        changes, answers = self._record.changes, self._answers
        logged = steps_of_logs(logs)
        settle_s = SETTLE_S + HOPS * self._stall_s
        raised = raised_steps([*changes, *logged], logs, {PAYMENTS})
        # Only the logs contain transaction markers, and records whose outcome their writer does not know.
        wrong = [
            *wrong_answers([*changes, *logged, *raised], answers, settle_s, self._down),
            *wrong_answers([*logged, *raised], answers, settle_s, self._down),
            *wrong_lineages(changes, answers, settle_s, self._down),
        ]
        for one in dict.fromkeys(wrong):  # most errors are found by both
            of_mark = [step for step in changes if step.mark == one.answer.mark]
            around = [step for step in of_mark if abs(step.begun_s - one.answer.registered_s) < AROUND_S]
            self.complaints.append("\n    ".join(map(str, [one, *around])))
        ends = marks_at_the_end(logs, self._record.incarnations)
        for mark in ends.keys() | self._marks.keys():
            lowest, highest = ends.get(mark, (GONE, 0))
            if not lowest <= self._marks.get(mark, GONE) <= highest:
                self.complaints.append(f"{mark} is {self._marks.get(mark)} at the end, not {lowest} to {highest}")
        for answer in answers:
            way = f"ended with {answer.error_code}" if answer.error_code else "expired"
            self.figures[f"waits {'satisfied' if answer.is_satisfied else way}"] += 1
            self.figures["waits with a stale mark"] += answer.stale_s is not None
        self.figures["steps recorded by writers"] = len(changes)
        self.figures["steps in the brokers' logs"] = len(logged)
        self.figures["milliseconds allowed for an answer"] = round(settle_s * 1000)


def run(history: History) -> None:
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        KafkaWorld(WAITS, history).run(Path(folder))
