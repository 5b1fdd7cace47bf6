"""The ends of partitions as marks: rejects outdated readings and detects truncated logs. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from purgatory_connectors.kafka.cluster_view import EndSeen
from purgatory_connectors.kafka.offset_records import Partition

GRACE_S: Final = 1.0
"""A partition is stale if it cannot be seen for longer than this; a change of leader takes less time."""


class Moved(NamedTuple):
    """The end of a partition has moved. `is_cut`: the log was truncated to this offset."""

    partition: Partition
    end: int
    is_cut: bool = False


@dataclass(slots=True)
class _LogEnd:
    seen_at: float
    not_before: float
    """Readings requested earlier belong to a log that has been truncated since."""
    end: int = -1
    leader_epoch: int = -1
    lower: int = -1
    """An end below the known one, seen once."""
    failing_since: float | None = None
    reason: str = ""


class TopicMarks:
    """The ends of all watched partitions. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._logs: Final[dict[Partition, _LogEnd]] = {}
        self.suspects: Final[set[str]] = set()
        """Topics that may have been recreated: an end or a leader epoch was lower. The caller empties the set."""

    def seen(self, found: Mapping[Partition, EndSeen], asked_at: float) -> list[Moved]:
        """Apply the results of a poll that began at `asked_at`."""
        moved = []
        for partition, end in found.items():
            log = self._logs.get(partition)
            if log is None:
                log = self._logs[partition] = _LogEnd(asked_at, asked_at)
            if asked_at < log.not_before:
                continue
            if end.offset < 0:
                if log.failing_since is None:
                    log.failing_since = asked_at
                log.reason = end.error
                continue
            if 0 <= end.leader_epoch < log.leader_epoch:
                # Either a former leader that does not know yet that it was replaced, or a new topic of the same name.
                self.suspects.add(partition[0])
                if log.failing_since is None:
                    log.failing_since = asked_at
                log.reason = "a broker that is no longer its leader has answered"
                continue
            log.seen_at, log.failing_since = max(asked_at, log.seen_at), None
            log.leader_epoch = max(log.leader_epoch, end.leader_epoch)
            moved += self._apply(partition, log, end.offset)
        return moved

    def _apply(self, partition: Partition, log: _LogEnd, end: int) -> list[Moved]:
        if end == log.end:
            log.lower = -1
            return []
        if end > log.end:
            log.end, log.lower = end, -1
            return [Moved(partition, end)]
        self.suspects.add(partition[0])
        if log.lower < 0:
            log.lower = end  # wait for a second reading: polls of one partition may overtake each other
            return []
        log.end, log.lower = end, -1
        return [Moved(partition, end, is_cut=True)]

    def fetched(self, ends: Mapping[Partition, int], now: float) -> list[Moved]:
        """Records or the ends of these logs were read, so each log has this end or a later one."""
        moved = []
        for partition, end in ends.items():
            log = self._logs.get(partition)
            if log is not None and end > log.end and log.lower < 0:
                log.end, log.seen_at, log.failing_since = end, max(now, log.seen_at), None
                moved.append(Moved(partition, end))
        return moved

    def forget(self, topic: str) -> list[Partition]:
        """Forget a topic that was deleted or replaced by another of the same name."""
        gone = [partition for partition in self._logs if partition[0] == topic]
        for partition in gone:
            del self._logs[partition]
        self.suspects.discard(topic)
        return gone

    def doubt(self, partition: Partition, now: float, leader_epoch: int) -> None:
        """The log was truncated to an unknown offset: ignore readings requested before `now`."""
        log = self._logs.get(partition)
        if log is not None:
            log.end, log.lower, log.not_before = -1, -1, now
            log.leader_epoch = max(log.leader_epoch, leader_epoch)

    def leader_epoch(self, partition: Partition) -> int:
        """Kafka's own leader epoch, which is not published; -1: not known."""
        log = self._logs.get(partition)
        return -1 if log is None else log.leader_epoch

    def end(self, partition: Partition) -> int:
        """The last known end; -1: not known."""
        log = self._logs.get(partition)
        return -1 if log is None else log.end

    def is_doubtful(self, partition: Partition) -> bool:
        """Whether the partition must be polled again at once."""
        log = self._logs.get(partition)
        return log is None or log.lower >= 0 or log.failing_since is not None

    def stale(self, now: float) -> dict[Partition, tuple[float, str]]:
        """Seconds since the last reading, and the reason, for each partition that has failed for more than GRACE_S."""
        return {
            partition: (now - log.seen_at, log.reason)
            for partition, log in self._logs.items()
            if log.failing_since is not None and now - log.failing_since >= GRACE_S
        }
