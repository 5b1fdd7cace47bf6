"""The programs under test, and faults of them and of the brokers: one at a time, or two if the second is worse then."""

import asyncio
import itertools
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from examples.free_ports import free_ports
from examples.kafka_cluster import KafkaCluster
from tests.histories.worlds.kafka.judge import GONE
from tests.histories.worlds.kafka.load import GROWING, LOSSY, QUIET, VOLATILE
from tests.histories.worlds.kafka.record import Record, admin_call, topic_mark
from tests.kit.eventually import wait_until

DAEMON: Final = "daemon"
SOURCES: Final = ("source-1", "source-2")
LONELY_S: Final = 4.0
"""Seconds for which a leader writes alone before it is killed, so that its followers leave the in-sync set."""
GROWN_MAX: Final = 12
ADMIN_TRIES: Final = 10
LOOK_S: Final = 0.1
"""Between two looks at the cluster."""
NOT_YET: Final = (KafkaException, KeyError)
FAULTS: Final = ("source", "topic", "broker", "daemon", "partitions", "cut", "both sources")


class Programs:
    """A daemon with a journal, and two sources that publish the same marks to it. `down`: periods without a daemon."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._ports: Final = free_ports(2)
        self.address: Final = f"127.0.0.1:{self._ports[0]}"
        self._log: Final = (folder / "programs.log").open("w")
        serve = ["purgatory", "serve", "--grpc-address", self.address, "--http-address", f"127.0.0.1:{self._ports[1]}"]
        source = ["purgatory_connectors", "kafka", bootstrap, "--to", self.address, "--state-dir"]
        self._commands: Final = {DAEMON: [*serve, "--data-dir", str(folder / "journal")]}
        self._commands.update((name, [*source, str(folder / name)]) for name in SOURCES)
        self._running: Final[dict[str, subprocess.Popen[bytes]]] = {}
        self._killed_s = 0.0
        self.down: Final[list[tuple[float, float]]] = []
        for name in SOURCES:
            (folder / name).mkdir()

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", *self._commands[name]]
        self._running[name] = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill(self, name: str) -> None:
        self._killed_s = time.monotonic()
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait()

    def until_served(self) -> None:
        """Wait until the daemon is available again."""

        def is_served() -> bool:
            socket.create_connection(("127.0.0.1", self._ports[0]), 1.0).close()
            return True

        wait_until(is_served, "the daemon is back", but=OSError)
        self.down.append((self._killed_s, time.monotonic()))

    def __enter__(self) -> Self:
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._running:
            self.kill(name)
        self._log.close()


class Faults:
    """Causes faults until `is_ending`, and repairs everything before it ends. `counts`: number of faults by kind."""

    def __init__(self, cluster: KafkaCluster, programs: Programs, record: Record, seed: int) -> None:
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
        partition = self._partitions(LOSSY)[number]
        leader = partition.leader
        follower = next(one for one in partition.replicas if one != leader)
        self._cluster.kill(follower)
        time.sleep(LONELY_S)
        is_alone = self._is_alone(number, leader)
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

        wait_until(is_led, f"{topic} has leaders", NOT_YET)

    def _until_in_sync(self) -> None:
        """Wait for all replicas. Otherwise a stopped broker could truncate a log without a record of it."""

        def is_in_sync() -> bool:
            return all(len(one.isrs) == len(one.replicas) for one in self._partitions(LOSSY).values())

        wait_until(is_in_sync, f"the replicas of {LOSSY} have caught up", NOT_YET)

    def _is_alone(self, number: int, leader: int) -> bool:
        """Wait until the other replica has left the in-sync set. Returns whether it has."""
        with suppress(AssertionError):
            return wait_until(lambda: list(self._partitions(LOSSY)[number].isrs) == [leader], but=NOT_YET)
        return False

    def _partitions(self, topic: str) -> dict[int, Any]:
        with self._consumer() as consumer:
            return dict(consumer.list_topics(topic, timeout=4).topics[topic].partitions)

    def _end(self, number: int) -> int:
        def watermarks() -> tuple[int, int]:
            with self._consumer() as consumer:
                found: tuple[int, int] = consumer.get_watermark_offsets(place, timeout=4, cached=False)
                return found

        place = TopicPartition(LOSSY, number)
        return wait_until(watermarks, f"{LOSSY}-{number} has an end", NOT_YET)[1]

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        """A new client for each look, because one whose broker died may keep outdated metadata."""
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "faults", **QUIET})
        try:
            yield consumer
        finally:
            consumer.close()
            time.sleep(LOOK_S)
