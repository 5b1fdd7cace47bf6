"""The faults of the history check: one at a time, or two if the second makes the first worse."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from examples.kafka_cluster import KafkaCluster
from tests.kafka.history.history_judge import GONE
from tests.kafka.history.history_load import GROWING, LOSSY, QUIET, VOLATILE
from tests.kafka.history.history_programs import DAEMON, SOURCES, Programs
from tests.kafka.history.history_record import HistoryRecord, admin_call, topic_mark

LONELY_S: Final = 4.0
"""Seconds for which a leader writes alone before it is killed, so that its followers leave the in-sync set."""
GROWN_MAX: Final = 12
ADMIN_TRIES: Final = 10
FAULTS: Final = ("source", "topic", "broker", "daemon", "partitions", "cut", "both sources")


class HistoryFaults:
    """Causes faults until `is_ending`, and repairs everything before it ends. `counts`: number of faults by kind."""

    def __init__(self, cluster: KafkaCluster, programs: Programs, record: HistoryRecord, seed: int) -> None:
        self.counts: Final[Counter[str]] = Counter()
        self._cluster: Final = cluster
        self._programs: Final = programs
        self._record: Final = record
        self._chance: Final = random.Random(seed)
        self.is_ending = False

    async def run(self, kinds: Collection[str] = FAULTS) -> None:
        for kind in itertools.cycle(kinds):
            await asyncio.sleep(self._chance.uniform(1.0, 4.0))
            if self.is_ending:
                return
            await self._break(kind)
            self.counts[kind] += 1

    async def _break(self, kind: str) -> None:
        if kind == "broker":
            await self._end_broker()
        elif kind == "cut":
            await asyncio.to_thread(self._cut)
        elif kind == "topic":
            await asyncio.to_thread(self._make_anew)
        elif kind == "partitions":
            await asyncio.to_thread(self._grow)
        else:
            names = {"daemon": (DAEMON,), "source": (self._chance.choice(SOURCES),), "both sources": SOURCES}[kind]
            for name in names:
                self._programs.kill(name)
            for name in names:
                await asyncio.sleep(self._chance.uniform(0.0, 2.0))
                self._programs.start(name)
            if kind == "daemon":
                await asyncio.to_thread(self._programs.until_served)

    async def _end_broker(self) -> None:
        """Stop a broker; sometimes a topic is recreated or grows at the same time."""
        broker = self._chance.choice(list(self._cluster.brokers))
        await asyncio.to_thread(self._until_in_sync)
        await asyncio.to_thread(self._chance.choice((self._cluster.kill, self._cluster.stop)), broker)
        meanwhile = self._chance.choice((None, None, self._make_anew, self._grow))
        if meanwhile is None:
            await asyncio.sleep(self._chance.uniform(0.0, 4.0))
        else:
            await asyncio.to_thread(meanwhile)
            self.counts["topics changed while a broker was down"] += 1
        await asyncio.to_thread(self._cluster.start, broker)

    def _make_anew(self) -> None:
        """Delete a topic and all its marks, and create it again under the same name."""
        record, count = self._record, self._record.partitions[VOLATILE]
        with record.gates[VOLATILE].closed():
            marks = [*(topic_mark(VOLATILE, number) for number in range(count)), *record.marks_on(VOLATILE)]
            begun_s = time.monotonic()
            self._insist("drop", VOLATILE)
            dropped_s = time.monotonic()
            for mark in marks:
                record.step(mark, GONE, begun_s, dropped_s)
            time.sleep(self._chance.choice((0.0, 0.0, 3.0)))
            made_s = time.monotonic()
            self._insist("create", VOLATILE, count)
            record.incarnations[VOLATILE] += 1
            self._until_led(VOLATILE, count)
            for number in range(count):
                record.step(topic_mark(VOLATILE, number), 0, made_s, time.monotonic())

    def _grow(self) -> None:
        record, count = self._record, self._record.partitions[GROWING]
        if count == GROWN_MAX:
            return
        begun_s = time.monotonic()
        self._insist("grow", GROWING, count + 1)
        self._until_led(GROWING, count + 1)
        record.step(topic_mark(GROWING, count), 0, begun_s, time.monotonic())
        record.partitions[GROWING] = count + 1

    def _cut(self) -> None:
        """Truncate a log: its follower is down during writes, and its leader is down when the follower returns."""
        record, number = self._record, self._chance.randrange(self._record.partitions[LOSSY])
        self._until_in_sync()
        leader = self._look(number).leader
        follower = next(one for one in self._look(number).replicas if one != leader)
        self._cluster.kill(follower)
        time.sleep(LONELY_S)
        is_alone = self._until(lambda: list(self._look(number).isrs) == [leader])
        time.sleep(LONELY_S / 2)
        with record.gates[LOSSY].closed():
            begun_s = time.monotonic()
            if is_alone:
                self._cluster.kill(leader)
            self._cluster.start(follower)
            self._until_led(LOSSY, record.partitions[LOSSY], but=leader if is_alone else 0)
            for one in range(record.partitions[LOSSY]):
                self._record_cut(one, begun_s)
            time.sleep(2.0)  # a truncation that is overwritten at once is invisible: two polls must agree
        self._cluster.start(leader)

    def _record_cut(self, number: int, begun_s: float) -> None:
        record, end, mark = self._record, self._end(number), topic_mark(LOSSY, number)
        lost = record.present_of(mark) - end
        if lost <= 0:
            return
        self.counts["records cut off"] += lost
        record.step(mark, end, begun_s, time.monotonic())
        for mark in record.marks_on(LOSSY):
            if mark[1] == number and record.present_of(mark) > end:
                record.step(mark, end, begun_s, None)  # until its group commits again, which ends the earlier state
                record.present[mark] = end

    def _insist(self, action: str, *arguments: object) -> None:
        """Retry until a broker has acknowledged it."""
        call = partial(admin_call, self._cluster.bootstrap, action, *arguments)
        if any(self._record.change(f"topics: {action}", {}, call) for _ in range(ADMIN_TRIES)):
            return
        raise AssertionError(f"{action} {arguments} was not acknowledged in {ADMIN_TRIES} tries")

    def _until_led(self, topic: str, count: int, but: int = 0) -> None:
        def is_led() -> bool:
            partitions = self._partitions(topic)
            return len(partitions) == count and all(one.leader not in (-1, but) for one in partitions.values())

        assert self._until(is_led), f"{topic} has no leaders"

    def _until_in_sync(self) -> None:
        """Wait for all replicas. Otherwise a stopped broker could truncate a log without a record of it."""

        def is_in_sync() -> bool:
            return all(len(one.isrs) == len(one.replicas) for one in self._partitions(LOSSY).values())

        assert self._until(is_in_sync), f"{LOSSY} has replicas that do not catch up"

    def _partitions(self, topic: str) -> dict[int, Any]:
        # A new client for each look, because one whose broker died may keep outdated metadata.
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "faults", **QUIET})
        try:
            return dict(consumer.list_topics(topic, timeout=4).topics[topic].partitions)
        finally:
            consumer.close()

    def _look(self, number: int) -> Any:  # noqa: ANN401 - confluent-kafka's PartitionMetadata is not exported
        return self._partitions(LOSSY)[number]

    def _end(self, number: int) -> int:
        ends: list[int] = []

        def is_known() -> bool:
            consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "faults", **QUIET})
            try:
                found = consumer.get_watermark_offsets(TopicPartition(LOSSY, number), timeout=4, cached=False)
            finally:
                consumer.close()
            ends.append(found[1])
            return True

        assert self._until(is_known), f"{LOSSY}-{number} has no end"
        return ends[0]

    def _until(self, holds: Callable[[], bool], patience_s: float = 60.0) -> bool:
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            try:
                if holds():
                    return True
            except (KafkaException, KeyError):
                pass
            time.sleep(0.1)
        return False
