"""Reads the brokers' own logs with Kafka's tool: which records were written, where, and when.

The content does not come from clients: answers are judged by it a second time.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from examples.kafka_cluster import KafkaCluster
from tests.histories.worlds.kafka.judge import GONE, Mark, RecordedStep, by_mark

DUMP: Final = "org.apache.kafka.tools.DumpLogSegments"
OFFSETS_TOPIC: Final = "__consumer_offsets"
FOLDER: Final = re.compile(r"(.+)-(\d+)(?:\.[0-9a-f]+-(?:delete|stray))?")
"""The folder of a partition. Folders of deleted topics are renamed, and kept for log.segment.delete.delay.ms."""
BATCH: Final = re.compile(r"baseOffset: \d+ .* producerId: (-?\d+) .* isTransactional: (\w+) ")
RECORD: Final = re.compile(r"\| offset: (\d+) \w+: (\d+) (.*)")
OFFSET_KEY: Final = "1"
"""The "type" in the keys of committed offsets, as printed by the tool."""
CLOCK_S: Final = 0.05
"""Brokers use the host's clock in milliseconds, which is adjusted at times; the record uses a monotonic clock."""


class LoggedRecord(NamedTuple):
    """`value`: empty for a transaction marker. `settled_s`: when its visibility became certain."""

    offset: int
    at_s: float
    value: str
    is_visible: bool = True
    settled_s: float = 0.0


class BrokerLogs(NamedTuple):
    """`records`: by mark of the topic and its incarnation. `commits`: the steps of each group's mark, in order."""

    records: dict[tuple[Mark, int], list[LoggedRecord]]
    commits: list[RecordedStep]


def read_logs(cluster: KafkaCluster, folder: Path, topics: Collection[str], clock_s: float) -> BrokerLogs:
    """Read the longest replica of each partition. `clock_s` converts the brokers' time to the recorder's."""
    records: dict[tuple[Mark, int], list[LoggedRecord]] = {}
    for topic, number, lines in _dumped(cluster, folder, topics):
        log = list(records_of(lines, clock_s))
        incarnation = next((int(one.value) for one in log if one.value), 0)
        name = (f"kafka/{topic}", number), incarnation
        records[name] = max(records.get(name, []), log, key=len)
    commits: dict[int, list[RecordedStep]] = {}
    for _, number, lines in _dumped(cluster, folder, [OFFSETS_TOPIC], "--offsets-decoder"):
        commits[number] = max(commits.get(number, []), list(commits_of(lines, clock_s)), key=len)
    return BrokerLogs(records, [one for of_partition in commits.values() for one in of_partition])


def _dumped(
    cluster: KafkaCluster, folder: Path, topics: Collection[str], *options: str
) -> Iterator[tuple[str, int, list[str]]]:
    """Topic and number of each replica of these topics, and the tool's output for its segments."""
    matched = {place: FOLDER.fullmatch(place.name) for place in folder.glob("data-*/*-*")}
    names = {place: (one[1], int(one[2])) for place, one in matched.items() if one and one[1] in topics}
    files = ",".join(str(segment) for place in names for segment in sorted(place.glob("*.log")))
    lines: defaultdict[Path, list[str]] = defaultdict(list)
    place = folder
    for line in cluster.tool(DUMP, *options, "--print-data-log", "--files", files).splitlines():
        if line.startswith("Dumping "):
            place = Path(line.removeprefix("Dumping ")).parent
        else:
            lines[place].append(line)
    for place, name in names.items():
        yield *name, lines[place]


def records_of(lines: Iterable[str], clock_s: float) -> Iterator[LoggedRecord]:
    """Settled records in order. Open transactions are left out, with everything after their beginning."""
    unsettled: list[tuple[str, LoggedRecord]] = []
    producer, is_transactional = "", False
    for line in lines:
        if batch := BATCH.match(line):
            producer, is_transactional = batch[1], batch[2] == "true"
            continue
        parsed = RECORD.match(line)
        if parsed is None:
            continue
        at_s, said = int(parsed[2]) / 1000 + clock_s, parsed[3]
        record = LoggedRecord(int(parsed[1]), at_s, said.partition("payload: ")[2], settled_s=at_s)
        marker = said.partition("endTxnMarker: ")[2].split(" ")[0]
        if marker:
            unsettled = [
                ("", one._replace(is_visible=marker == "COMMIT", settled_s=at_s)) if owner == producer else (owner, one)
                for owner, one in unsettled
            ]
            record = record._replace(is_visible=False)
        unsettled.append((producer if is_transactional and not marker else "", record))
        while unsettled and not unsettled[0][0]:
            yield unsettled.pop(0)[1]


def commits_of(lines: Iterable[str], clock_s: float) -> Iterator[RecordedStep]:
    """The committed offsets; GONE for a tombstone."""
    for line in lines:
        parsed = RECORD.match(line)
        if parsed is None or "payload: " not in line:
            continue
        key_text, _, value_text = parsed[3].partition("key: ")[2].partition(" payload: ")
        key = json.loads(key_text)
        if str(key["type"]) == OFFSET_KEY:
            name = key["data"]
            mark = f"kafka/{name['group']}/{name['topic']}", int(name["partition"])
            offset = GONE if value_text == "<DELETE>" else int(json.loads(value_text)["data"]["offset"])
            yield RecordedStep(mark, offset, int(parsed[2]) / 1000 + clock_s - CLOCK_S, None)


def steps_of_logs(logs: BrokerLogs) -> list[RecordedStep]:
    """The steps in the logs with their start times; acknowledgement times are unknown."""
    steps = [
        RecordedStep(mark, one.offset + 1, one.at_s - CLOCK_S, None)
        for (mark, _), records in logs.records.items()
        for one in records
    ]
    return steps + logs.commits


def raised_steps(steps: Iterable[RecordedStep], logs: BrokerLogs, topics: Collection[str]) -> list[RecordedStep]:
    """How far marks on these topics may be raised above the committed offset: over records invisible to consumers."""
    raised: list[RecordedStep] = []
    for mark, history in by_mark(steps).items():
        if mark[0].count("/") < 2 or mark[0].rpartition("/")[2] not in topics:
            continue
        log = {one.offset: one for one in logs.records.get((_topic_of(mark), 1), ())}
        until_s = math.inf  # the next commit has surely replaced it by then
        for step in reversed(history):
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


def marks_at_the_end(logs: BrokerLogs, incarnations: Mapping[str, int]) -> dict[Mark, tuple[int, int]]:
    """The lowest and highest permitted final value of each mark. GONE: the mark may be absent."""
    ends: dict[Mark, tuple[int, int]] = {}
    for (mark, incarnation), records in logs.records.items():
        if records and incarnation == incarnations[mark[0].removeprefix("kafka/")]:
            ends[mark] = (records[-1].offset + 1,) * 2
    committed = {commit.mark: commit.offset for commit in logs.commits}
    for mark, offset in committed.items():
        topic = _topic_of(mark)
        log = {one.offset: one for one in logs.records.get((topic, incarnations[topic[0].removeprefix("kafka/")]), ())}
        raised = list(_raised(RecordedStep(mark, offset, 0.0, None), log, math.inf))
        ends[mark] = offset, raised[-1].offset if raised else max(0, offset)
    return ends


def _topic_of(mark: Mark) -> Mark:
    return "kafka/" + mark[0].rpartition("/")[2], mark[1]
