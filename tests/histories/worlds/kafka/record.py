"""The record of all changes to a cluster: writer, value, start and end time. Shared by threads."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaException

from tests.histories.worlds.kafka.judge import GONE, Mark, RecordedStep

ADMIN_S: Final = 20.0


class TopicGate:
    """Permits concurrent use of a topic by many, or one exclusive change."""

    def __init__(self) -> None:
        self._changed: Final = threading.Condition()
        self._users = 0
        self._is_closed = False

    @contextmanager
    def used(self) -> Iterator[bool]:
        """Use the topic; yields whether that is permitted."""
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
        """Wait until the topic is unused, then exclude all users. One caller at a time."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._users)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False


class Record:
    """`changes` are the recorded steps; `present` is each mark's current value, GONE after its removal.

    `partitions`: partition counts of topics. `incarnations`: how often each topic was created. `tally`: acknowledged
    and uncertain changes, by kind.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.changes: Final[list[RecordedStep]] = []
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
        """Make a change. If it fails, it is unknown whether it took effect."""
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

    def marks_on(self, topic: str) -> list[Mark]:
        return [mark for mark in list(self.present) if mark[0].count("/") > 1 and mark[0].endswith(f"/{topic}")]

    def present_of(self, mark: Mark) -> int:
        """The current value; 0 if there is none."""
        return max(0, self.present.get(mark, GONE))


def topic_mark(topic: str, number: int) -> Mark:
    return f"kafka/{topic}", number


def group_mark(group: str, topic: str, number: int) -> Mark:
    return f"kafka/{group}/{topic}", number


def admin_call(bootstrap: str, *call: object) -> None:
    """Run an admin call. Raises SubprocessError if it was not acknowledged."""
    command = [sys.executable, "-m", "tests.histories.worlds.kafka.admin_call", bootstrap, *map(str, call)]
    subprocess.run(command, check=True, timeout=ADMIN_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
