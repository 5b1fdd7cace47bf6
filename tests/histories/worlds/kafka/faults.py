"""The programs under test, and faults of them and of the brokers: one at a time, or two if the second is worse then."""

import itertools
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from examples.free_ports import free_port
from examples.kafka_cluster import KafkaCluster
from tests.histories.worlds.kafka.judge import GONE
from tests.histories.worlds.kafka.load import GROWING, QUIET, VOLATILE, Record, topic_mark
from tests.kit.daemon import DaemonProcess, StartedDaemon
from tests.kit.eventually import wait_until

DAEMON: Final = "daemon"
SOURCES: Final = {"source-1": "read", "source-2": "poll"}
"""How each learns of commits."""
GROWN_MAX: Final = 12
REQUEST_S: Final = 8.0
LOOK_S: Final = 0.1
"""Between two looks at the cluster."""
ALL: Final = ("source", "topic", "broker", "daemon", "partitions", "both sources")


class Programs:
    """A daemon with a journal, and two sources that publish the same marks to it. `down`: periods without a daemon."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.address: Final = f"127.0.0.1:{free_port()}"
        self.down: Final[list[tuple[float, float]]] = []
        self._folder: Final = folder
        self._bootstrap: Final = bootstrap
        self._running: Final[dict[str, StartedDaemon]] = {}

    def start(self, name: str) -> None:
        """Start a program again. A daemon then serves."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        if name == DAEMON:
            flags = ("--grpc-address", self.address, "--data-dir", str(folder / "data"))
            self._running[name] = DaemonProcess(folder, flags).process
            return
        source = ["purgatory_connectors", "kafka", f"{self._bootstrap}?commits={SOURCES[name]}"]
        command = [sys.executable, "-m", *source, "--to", self.address, "--state-dir", str(folder)]
        with (folder / "log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def restart(self, names: Collection[str], chance: random.Random) -> None:
        killed_s = time.monotonic()
        for name in names:
            self._kill(name)
        for name in names:
            time.sleep(chance.uniform(0.0, 2.0))
            self.start(name)
        if DAEMON in names:
            self.down.append((killed_s, time.monotonic()))

    def _kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def __enter__(self) -> Self:
        for name in (DAEMON, *SOURCES):
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._running:
            self._kill(name)


class Faults:
    """Causes faults in a thread until `ending` is set, and repairs everything before it ends. `counts`: number of
    faults by kind.
    """

    def __init__(self, cluster: KafkaCluster, programs: Programs, record: Record, seed: int) -> None:
        self.counts: Final[Counter[str]] = Counter()
        self.ending: Final = threading.Event()
        self._cluster: Final = cluster
        self._programs: Final = programs
        self._record: Final = record
        self._chance: Final = random.Random(seed)

    def run(self, kinds: Collection[str] = ALL) -> None:
        """Cause these faults in turn."""
        restart, chance = self._programs.restart, self._chance
        causes: dict[str, Callable[[], None]] = {
            "source": lambda: restart([chance.choice(list(SOURCES))], chance),
            "both sources": lambda: restart(SOURCES, chance),
            "daemon": lambda: restart([DAEMON], chance),
            "topic": self._recreate,
            "broker": self._end_broker,
            "partitions": self._grow,
        }
        for kind in itertools.cycle(kinds):
            if self.ending.wait(chance.uniform(1.0, 4.0)):
                return
            causes[kind]()
            self.counts[kind] += 1

    def _end_broker(self) -> None:
        """Stop a broker; sometimes a topic is recreated or grows at the same time."""
        broker = self._chance.choice(list(self._cluster.brokers))
        self._chance.choice((self._cluster.kill, self._cluster.stop))(broker)
        meanwhile = self._chance.choice((None, None, self._recreate, self._grow))
        if meanwhile is None:
            time.sleep(self._chance.uniform(0.0, 4.0))
        else:
            meanwhile()
            self.counts["topics changed while a broker was down"] += 1
        self._cluster.start(broker)

    def _recreate(self) -> None:
        """Delete a topic and all its marks, and create it again under the same name."""
        record, count = self._record, self._record.partitions[VOLATILE]
        timeouts = {"operation_timeout": REQUEST_S, "request_timeout": REQUEST_S}
        with record.volatile:
            marks = [mark for mark in list(record.present) if mark[0].endswith(f"/{VOLATILE}")]
            begun_s = time.monotonic()
            self._insist(lambda admin: admin.delete_topics([VOLATILE], **timeouts), KafkaError.UNKNOWN_TOPIC_OR_PART)
            dropped_s = time.monotonic()
            for mark in marks:
                record.step(mark, GONE, begun_s, dropped_s)
            time.sleep(self._chance.choice((0.0, 0.0, 3.0)))
            created_s, new = time.monotonic(), NewTopic(VOLATILE, count, 3)
            self._insist(lambda admin: admin.create_topics([new], **timeouts), KafkaError.TOPIC_ALREADY_EXISTS)
            record.incarnations[VOLATILE] += 1
            self._until_led(VOLATILE, count)
            for number in range(count):
                record.step(topic_mark(VOLATILE, number), 0, created_s, time.monotonic())

    def _grow(self) -> None:
        record, count = self._record, self._record.partitions[GROWING]
        if count == GROWN_MAX:
            return
        begun_s, grown = time.monotonic(), NewPartitions(GROWING, count + 1)
        self._insist(lambda admin: admin.create_partitions([grown]), KafkaError.INVALID_PARTITIONS)
        self._until_led(GROWING, count + 1)
        record.step(topic_mark(GROWING, count), 0, begun_s, time.monotonic())
        record.partitions[GROWING] = count + 1

    def _insist(self, call: Callable[[AdminClient], Mapping[Any, Future[Any]]], code_if_done: int) -> None:
        """Repeat a change of a topic until a broker has acknowledged it, or says that it was made before."""

        def is_done() -> bool:
            admin = self._admin()
            try:
                for future in call(admin).values():
                    future.result()
            except KafkaException as error:
                return bool(error.args[0].code() == code_if_done)
            return True

        wait_until(is_done, "a change of a topic is acknowledged")

    def _until_led(self, topic: str, count: int) -> None:
        """Wait until the topic has this number of partitions with leaders."""

        def is_led() -> bool:
            partitions = self._admin().list_topics(topic, timeout=4).topics[topic].partitions
            return len(partitions) == count and all(one.leader >= 0 for one in partitions.values())

        wait_until(is_led, f"{topic} has leaders", (KafkaException, KeyError))

    def _admin(self) -> AdminClient:
        """A new client for each look, because one whose broker died may keep outdated metadata."""
        time.sleep(LOOK_S)
        return AdminClient({"bootstrap.servers": self._cluster.bootstrap, **QUIET})
