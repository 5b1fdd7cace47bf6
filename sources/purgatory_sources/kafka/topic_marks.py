"""Where topics end, as marks: what is older than what is known already, and what is a cut. No input or output."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from purgatory_sources.kafka.cluster_view import EndSeen, Partition

GRACE_S: Final = 1.0
"""A change of leader takes less: a partition that cannot be seen is called stale only after so long."""


class Moved(NamedTuple):
    """A partition's end has moved. `is_cut`: its log was truncated to there."""

    partition: Partition
    end: int
    is_cut: bool = False


class _LogEnd:
    __slots__ = ("end", "failing_since", "leader_epoch", "lower", "not_before", "reason", "seen_at")

    def __init__(self, now: float) -> None:
        self.end = -1
        self.leader_epoch = -1
        self.lower = -1  # an end below the known one, seen once
        self.seen_at = now
        self.failing_since: float | None = None
        self.reason = ""
        self.not_before = now  # answers to earlier questions are of a log that was cut meanwhile


class TopicMarks:
    """All partitions that are looked at. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._logs: Final[dict[Partition, _LogEnd]] = {}
        self.suspects: Final[set[str]] = set()
        """Topics that may have been made anew: an end or a leader epoch was lower. Whoever has looked empties it."""

    def seen(self, found: Mapping[Partition, EndSeen], asked_at: float) -> list[Moved]:
        """What a poll that began at `asked_at` has found."""
        moved = []
        for partition, end in found.items():
            log = self._logs.get(partition)
            if log is None:
                log = self._logs[partition] = _LogEnd(asked_at)
            if asked_at < log.not_before:
                continue
            if end.offset < 0:
                if log.failing_since is None:
                    log.failing_since = asked_at
                log.reason = end.error
                continue
            if 0 <= end.leader_epoch < log.leader_epoch:
                # A broker that was deposed and does not know it yet; or another topic by the same name.
                self.suspects.add(partition[0])
                if log.failing_since is None:
                    log.failing_since = asked_at
                log.reason = "a broker that does not lead it any more has answered"
                continue
            log.seen_at, log.failing_since = max(asked_at, log.seen_at), None
            log.leader_epoch = max(log.leader_epoch, end.leader_epoch)
            moved += self._take(partition, log, end.offset)
        return moved

    def _take(self, partition: Partition, log: _LogEnd, end: int) -> list[Moved]:
        if end == log.end:
            log.lower = -1
            return []
        if end > log.end:
            log.end, log.lower = end, -1
            return [Moved(partition, end)]
        self.suspects.add(partition[0])
        if log.lower < 0:
            log.lower = end  # said once: polls of one partition may overtake each other
            return []
        log.end, log.lower = end, -1
        return [Moved(partition, end, is_cut=True)]

    def fetched(self, partition: Partition, end: int, now: float) -> list[Moved]:
        """A record or the end of a log was read: it ends at `end` at least."""
        log = self._logs.get(partition)
        if log is None or end <= log.end or log.lower >= 0:
            return []
        log.end, log.seen_at, log.failing_since = end, max(now, log.seen_at), None
        return [Moved(partition, end)]

    def forget(self, topic: str) -> list[Partition]:
        """A topic is gone, or another one has its name."""
        gone = [partition for partition in self._logs if partition[0] == topic]
        for partition in gone:
            del self._logs[partition]
        self.suspects.discard(topic)
        return gone

    def doubt(self, partition: Partition, now: float, leader_epoch: int) -> None:
        """It may end anywhere since its log was cut: only what is asked from now on counts."""
        log = self._logs.get(partition)
        if log is not None:
            log.end, log.lower, log.not_before = -1, -1, now
            log.leader_epoch = max(log.leader_epoch, leader_epoch)

    def leader_epoch(self, partition: Partition) -> int:
        """Kafka's own, which nobody is told; -1: not known."""
        log = self._logs.get(partition)
        return -1 if log is None else log.leader_epoch

    def end(self, partition: Partition) -> int:
        """-1: not known."""
        log = self._logs.get(partition)
        return -1 if log is None else log.end

    def is_doubtful(self, partition: Partition) -> bool:
        """Whether it is to be asked again at once."""
        log = self._logs.get(partition)
        return log is None or log.lower >= 0 or log.failing_since is not None

    def stale(self, now: float) -> dict[Partition, tuple[float, str]]:
        """For each partition that has not been seen for longer than a change of leader takes: how long, and why."""
        return {
            partition: (now - log.seen_at, log.reason)
            for partition, log in self._logs.items()
            if log.failing_since is not None and now - log.failing_since >= GRACE_S
        }
