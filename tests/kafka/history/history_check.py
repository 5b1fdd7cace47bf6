"""The history check: real brokers, a daemon and two sources under repeated faults."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.results import Outcome

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import ClusterClients
from tests.kafka.history.broker_logs import BrokerLogs, read_logs
from tests.kafka.history.history_faults import FAULTS, HistoryFaults
from tests.kafka.history.history_judge import GONE, UNKNOWN_PARTITION, Answer, Mark, RecordedStep, Wrong, wrong_answers
from tests.kafka.history.history_load import LIVE, LIVE_TOPICS, LOSSY, PARTITIONS, PAYMENTS, TOPICS_OF, HistoryLoad
from tests.kafka.history.history_programs import Programs
from tests.kafka.history.history_record import HistoryRecord, topic_mark
from tests.kafka.history.history_waiters import HistoryWaiters
from tests.kafka.history.lineage_judge import FENCED, wrong_lineages
from tests.kafka.history.log_check import contradictions, marks_at_the_end, raised_steps, steps_of_logs

SETTLE_S: Final = 5.0
"""Silence of a killed source is detected after 3 s; until then its marks are not reported as stale."""
HOPS: Final = 5
"""Processes between a commit and its answer: two brokers, source, daemon, client. A busy machine may stall each of them
for as long as it stalls this process.
"""
START_S: Final = 300.0
END_S: Final = 60.0
"""After the last fault and commit, every mark must match the brokers within this time (seconds)."""
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


@dataclass
class HistoryReport:
    """The actions, the results of the waits, and the errors: answers, final marks, contradictions in the record."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    settle_s: float = SETTLE_S
    stale: int = 0
    removed: int = 0
    fenced: int = 0
    steps: int = 0
    logged: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[Wrong] = field(default_factory=list)
    wrong_marks: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    changes: list[RecordedStep] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.wrong_marks or self.contradictions)


@dataclass
class _Observed:
    """The data that a run leaves for its judges."""

    record: HistoryRecord
    answers: list[Answer]
    marks: dict[Mark, int]
    down: list[tuple[float, float]]
    is_caught_up: bool
    settle_s: float


def run(folder: Path, waits: int, seed: int, faults: tuple[str, ...] = FAULTS) -> HistoryReport:
    """Run the check. Everything it starts has ended when it returns. Raises ClusterUnavailable."""
    clock_s = time.monotonic() - time.time()
    report = HistoryReport()
    brokers = folder / "brokers"
    with KafkaCluster(brokers, 3, SETTINGS) as cluster:
        _make_topics(ClusterClients(cluster.bootstrap))
        observed = asyncio.run(_observe(folder, cluster, waits, seed, faults, report))
        cluster.kill(*cluster.brokers)
        logs = read_logs(cluster, brokers, PARTITIONS, clock_s)
    _judge(report, observed, logs)
    return report


def _make_topics(clients: ClusterClients) -> None:
    for topic, count in PARTITIONS.items():
        if topic == LOSSY:
            clients.create(topic, count, 2, {"unclean.leader.election.enable": "true"})
        else:
            clients.create(topic, count, 3)


async def _observe(
    folder: Path, cluster: KafkaCluster, waits: int, seed: int, faults: tuple[str, ...], report: HistoryReport
) -> _Observed:
    with Programs(folder, cluster.bootstrap) as programs:
        async with AsyncClient(programs.address, give_up_after=60.0) as client:
            with HistoryLoad(cluster.bootstrap, seed) as load:
                record = load.record
                waiters = HistoryWaiters(client, record, waits, seed)
                await _until_fed(client, record)
                breaking = HistoryFaults(cluster, programs, record, seed)
                while_waiting = asyncio.create_task(breaking.run(faults))
                stalls = [0.0]
                measuring = asyncio.create_task(_measure_stalls(stalls))
                try:
                    await waiters.run()
                finally:
                    measuring.cancel()
                    breaking.is_ending = True
                    await while_waiting
                await asyncio.to_thread(load.run_dry)
                is_caught_up = await _is_caught_up(client)
            marks = await _last_marks(client, record)
    answers = waiters.answers
    report.outcomes, report.faults, report.tally = waiters.outcomes, breaking.counts, record.tally
    report.stale = sum(answer.stale_s is not None for answer in answers)
    report.removed = sum(answer.error_code == UNKNOWN_PARTITION for answer in answers)
    report.fenced = sum(answer.error_code == FENCED for answer in answers)
    return _Observed(record, answers, marks, programs.down, is_caught_up, SETTLE_S + HOPS * max(stalls))


async def _measure_stalls(stalls: list[float]) -> None:
    """Append by how much each short sleep was late."""
    while True:
        begun_s = time.monotonic()
        await asyncio.sleep(0.05)
        stalls.append(time.monotonic() - begun_s - 0.05)


async def _until_fed(client: AsyncClient, record: HistoryRecord) -> None:
    """Wait until each group has committed and the source has published a mark of it."""
    groups = {f"kafka/{group}/" for group in (*TOPICS_OF, LIVE)}
    async with asyncio.timeout(START_S):
        while True:
            try:
                if (await client.produce({topic_mark("orders", 0): 1}, timeout=1)).satisfied and all(
                    any(name.startswith(group) and offset > 0 for (name, _), offset in list(record.present.items()))
                    for group in groups
                ):
                    return
            except PurgatoryClientError:  # the daemon is still starting
                await asyncio.sleep(0.1)


async def _is_caught_up(client: AsyncClient) -> bool:
    """Whether members have reached the end, past the leftovers of transactions; nothing is written any more."""
    try:
        return (await client.caught_up(LIVE, LIVE_TOPICS, timeout=END_S)).satisfied
    except PurgatoryClientError:
        return False


async def _last_marks(client: AsyncClient, record: HistoryRecord) -> dict[Mark, int]:
    # Without a wait on each mark, ends of topics are polled only every 10 s.
    await client.produce({mark: 1 << 40 for mark, offset in record.present.items() if offset != GONE}, timeout=SETTLE_S)
    return {
        (one.topic, one.partition): one.high_watermark
        async for one in client.partitions(prefix="kafka/", page_size=10_000)
    }


def _judge(report: HistoryReport, observed: _Observed, logs: BrokerLogs) -> None:
    record, answers = observed.record, observed.answers
    logged = steps_of_logs(logs)
    report.changes, report.settle_s = record.changes, observed.settle_s
    report.steps, report.logged = len(record.changes), len(logged)
    raised = raised_steps([*record.changes, *logged], logs, {PAYMENTS})
    # Only the logs contain transaction markers, and records whose outcome their writer does not know.
    report.wrong = wrong_answers([*record.changes, *logged, *raised], answers, observed.settle_s, observed.down)
    cut = [step for step in record.changes if step.mark[0] == f"kafka/{LOSSY}"]
    report.wrong += wrong_answers([*logged, *raised, *cut], answers, observed.settle_s, observed.down)
    report.wrong += wrong_lineages(record.changes, answers, observed.settle_s, observed.down)
    report.wrong = list(dict.fromkeys(report.wrong))  # most errors are found by both
    report.contradictions = contradictions(record.written, record.sent, record.changes, logs, {LOSSY})
    ends = marks_at_the_end(logs, record.incarnations)
    for mark in ends.keys() | observed.marks.keys():
        lowest, highest = ends.get(mark, (GONE, 0))
        if not lowest <= observed.marks.get(mark, GONE) <= highest:
            report.wrong_marks.append(f"{mark} is {observed.marks.get(mark)} at the end, not {lowest} to {highest}")
    if not observed.is_caught_up:
        report.wrong_marks.append(f"group {LIVE} was not caught up in {END_S:.0f} s")
