"""The record of what was done to a cluster: who wrote what, from when to when. Shared by threads."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from tests.kafka.history.history_judge import GONE, Mark, RecordedStep

ADMIN_S: Final = 20.0


class WrittenRecord(NamedTuple):
    """A record that a broker has acknowledged. Its value is of no other record."""

    mark: Mark
    value: str
    offset: int
    begun_s: float
    acknowledged_s: float


class TopicGate:
    """Many may use a topic at a time, or one may change it."""

    def __init__(self) -> None:
        self._changed: Final = threading.Condition()
        self._users = 0
        self._is_closed = False

    @contextmanager
    def used(self) -> Iterator[bool]:
        """Whether it may be used."""
        with self._changed:
            is_open = not self._is_closed
            self._users += is_open
        try:
            yield is_open
        finally:
            if is_open:
                with self._changed:
                    self._users -= 1
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Waits until nobody uses it; then nobody may. One at a time."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._users)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False


class HistoryRecord:
    """`changes` is what was done, `present` what each mark is by it, GONE once it is removed.

    `partitions`: how many each topic has. `incarnations`: how often it was made. `tally`: how many changes were
    acknowledged, and of how many nobody knows, by what was done. `sent`: when each record's value was handed over.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.changes: Final[list[RecordedStep]] = []
        self.written: Final[list[WrittenRecord]] = []
        self.sent: Final[dict[str, float]] = {}
        self.present: Final[dict[Mark, int]] = {}
        self.partitions: Final = dict(partitions)
        self.incarnations: Final = Counter(partitions.keys())
        self.tally: Final[Counter[str]] = Counter()
        self.gates: Final = {topic: TopicGate() for topic in partitions}
        for topic, count in partitions.items():
            for number in range(count):
                self.step(topic_mark(topic, number), 0, 0.0, 0.0)

    def step(self, mark: Mark, offset: int, begun_s: float, acknowledged_s: float | None) -> None:
        self.changes.append(RecordedStep(mark, offset, begun_s, acknowledged_s))
        if acknowledged_s is not None:
            self.present[mark] = offset

    def change(self, what: str, offsets: Mapping[Mark, int], change: Callable[[], object]) -> bool:
        """Does it. Where it fails nobody knows whether it happened."""
        begun_s, acknowledged_s = time.monotonic(), None
        try:
            change()
            acknowledged_s = time.monotonic()
        except (KafkaException, subprocess.SubprocessError):
            pass
        self.tally[what if acknowledged_s is not None else f"{what}, unknown"] += 1
        for mark, offset in offsets.items():
            self.step(mark, offset, begun_s, acknowledged_s)
        return acknowledged_s is not None

    def value(self, topic: str) -> str:
        """A value for a record that is sent now."""
        value = f"{topic}:{self.incarnations[topic]}:{len(self.sent)}:{threading.get_ident()}"
        self.sent[value] = time.monotonic()
        return value

    def was_written(self, mark: Mark, value: str, offset: int) -> None:
        """A broker has acknowledged a record."""
        record = WrittenRecord(mark, value, offset, self.sent[value], time.monotonic())
        self.written.append(record)
        self.step(mark, offset + 1, record.begun_s, record.acknowledged_s)

    def marks_on(self, topic: str) -> list[Mark]:
        """Of all groups."""
        return [mark for mark in list(self.present) if mark[0].count("/") > 1 and mark[0].endswith(f"/{topic}")]

    def present_of(self, mark: Mark) -> int:
        """0 where there is none."""
        return max(0, self.present.get(mark, GONE))


def topic_mark(topic: str, number: int) -> Mark:
    return f"kafka/{topic}", number


def group_mark(group: str, topic: str, number: int) -> Mark:
    return f"kafka/{group}/{topic}", number


def admin_call(bootstrap: str, *call: object) -> None:
    """Raises SubprocessError when it was not acknowledged."""
    command = [sys.executable, "-m", "tests.kafka.history.admin_call", bootstrap, *map(str, call)]
    subprocess.run(command, check=True, timeout=ADMIN_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
