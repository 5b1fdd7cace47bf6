"""Compares the brokers' logs with the record of the writers, and builds a history from the logs."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tests.kafka.history.broker_logs import BrokerLogs, CommittedOffset, LoggedRecord
from tests.kafka.history.history_judge import GONE, Mark, RecordedStep
from tests.kafka.history.history_record import WrittenRecord

CLOCK_S: Final = 0.05
"""Brokers use the host's clock in milliseconds, which is adjusted at times; the record uses a monotonic clock."""


def steps_of_logs(logs: BrokerLogs) -> list[RecordedStep]:
    """The steps in the logs with their start times; acknowledgement times are unknown."""
    steps = [
        RecordedStep(mark, one.offset + 1, one.at_s - CLOCK_S, None)
        for (mark, _), records in logs.records.items()
        for one in records
    ]
    return steps + [RecordedStep(one.mark, one.offset, one.at_s - CLOCK_S, None) for one in logs.commits]


def raised_steps(steps: Iterable[RecordedStep], logs: BrokerLogs, topics: Collection[str]) -> list[RecordedStep]:
    """How far marks on these topics may be raised above the committed offset: over records invisible to consumers."""
    by_mark: defaultdict[Mark, list[RecordedStep]] = defaultdict(list)
    for step in steps:
        group, _, topic = step.mark[0].removeprefix("kafka/").rpartition("/")
        if group and topic in topics:
            by_mark[step.mark].append(step)
    raised: list[RecordedStep] = []
    for mark, history in by_mark.items():
        log = {one.offset: one for one in logs.records.get((_topic_of(mark), 1), ())}
        history.sort(key=lambda step: step.begun_s, reverse=True)
        until_s = math.inf  # the next commit has surely replaced it by then
        for step in history:
            raised += _raised(step, log, until_s)
            until_s = until_s if step.acknowledged_s is None else step.acknowledged_s
    return raised


def _raised(step: RecordedStep, log: Mapping[int, LoggedRecord], until_s: float) -> Iterable[RecordedStep]:
    offset, begun_s = max(0, step.offset), step.begun_s
    while (record := log.get(offset)) is not None and not record.is_visible:
        offset, begun_s = offset + 1, max(begun_s, record.settled_s - CLOCK_S)
        if begun_s > until_s:
            break
        yield RecordedStep(step.mark, offset, begun_s, None)


def contradictions(
    written: Iterable[WrittenRecord], sent: Mapping[str, float], changes: Iterable[RecordedStep], logs: BrokerLogs,
    cut_topics: Collection[str],
) -> list[str]:  # fmt: skip
    """Differences between the two. `cut_topics`: topics that may lose acknowledged records."""
    return [*_records_told_apart(written, sent, logs, cut_topics), *_commits_told_apart(changes, logs.commits)]


def _records_told_apart(
    written: Iterable[WrittenRecord], sent: Mapping[str, float], logs: BrokerLogs, cut_topics: Collection[str]
) -> Iterable[str]:
    logged: dict[tuple[Mark, int, str], float] = {}
    for (mark, _), records in logs.records.items():
        for one in records:
            if not one.value:
                continue
            logged[mark, one.offset, one.value] = one.at_s
            if one.value not in sent or one.at_s < sent[one.value] - CLOCK_S:
                yield f"{mark} has at {one.offset} what nobody had sent by then: {one}"
    for record in written:
        at_s = logged.get((record.mark, record.offset, record.value))
        if at_s is None:
            if record.mark[0].rpartition("/")[2] not in cut_topics:
                yield f"acknowledged, and not in the log: {record}"
        elif at_s > record.acknowledged_s + CLOCK_S:
            yield f"acknowledged before it was in the log: {record}, {at_s}"


def _commits_told_apart(changes: Iterable[RecordedStep], commits: Sequence[CommittedOffset]) -> Iterable[str]:
    logged: defaultdict[tuple[Mark, int], list[float]] = defaultdict(list)
    for commit in commits:
        logged[commit.mark, commit.offset].append(commit.at_s)
    recorded: defaultdict[tuple[Mark, int], list[RecordedStep]] = defaultdict(list)
    for step in changes:
        if step.mark[0].count("/") > 1:
            recorded[step.mark, step.offset].append(step)
    for name, steps in recorded.items():
        for step in steps:
            if step.acknowledged_s is None or step.offset == GONE:
                continue
            if not any(step.begun_s - CLOCK_S <= at_s <= step.acknowledged_s + CLOCK_S for at_s in logged[name]):
                yield f"acknowledged, and not in the log: {step}"
    for name, times in logged.items():
        for at_s in times:
            if not any(step.begun_s - CLOCK_S <= at_s for step in recorded[name]):
                yield f"{name} is in the log at {at_s}, and nobody has done it by then"


def marks_at_the_end(logs: BrokerLogs, incarnations: Mapping[str, int]) -> dict[Mark, tuple[int, int]]:
    """The lowest and highest permitted final value of each mark. GONE: the mark may be absent."""
    ends: dict[Mark, tuple[int, int]] = {}
    for (mark, incarnation), records in logs.records.items():
        if records and incarnation == incarnations[mark[0].removeprefix("kafka/")]:
            ends[mark] = (records[-1].offset + 1,) * 2
    committed: dict[Mark, int] = {}
    for commit in logs.commits:
        committed[commit.mark] = commit.offset
    for mark, offset in committed.items():
        topic = _topic_of(mark)
        log = {one.offset: one for one in logs.records.get((topic, incarnations[topic[0].removeprefix("kafka/")]), ())}
        raised = list(_raised(RecordedStep(mark, offset, 0.0, None), log, math.inf))
        ends[mark] = offset, raised[-1].offset if raised else max(0, offset)
    return ends


def _topic_of(mark: Mark) -> Mark:
    return "kafka/" + mark[0].rpartition("/")[2], mark[1]
