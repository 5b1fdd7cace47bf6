"""Finds groups that have nothing left to read although their committed offset is below the end of the log.

A group's committed offset stays below the end of a log if the last offsets have no visible record: transaction markers
occupy offsets, aborted records are skipped, and compacted or deleted records are gone. A wait for "committed offset at
least the end" would then never complete. One fetch from the committed offset decides: it returns the first visible
record (with its offset) or the end of the readable log.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from purgatory_connectors.kafka.group_marks import NO_COMMIT, GroupMove, UncertainOffset
from purgatory_connectors.kafka.group_watch import GroupWatch
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.offset_records import CommitName, Partition
from purgatory_connectors.kafka.topic_watch import TopicWatch
from purgatory_connectors.publisher.mark_rules import MarkMove

UNMOVED_S: Final = 0.1
"""A group that committed within this time is not checked; its next commit will decide."""
AGAIN_MIN_S: Final = 0.5
AGAIN_MAX_S: Final = 10.0
PROBE_S: Final = 2.0
ENDS_MAX: Final = 1_000
"""Ends that are remembered for one partition of a group; the highest ones are forgotten."""
ENDS_S: Final = 60.0
FETCH_WAIT_MS: Final = 10
"""How long a broker waits before it answers an empty fetch."""
FETCH_BYTES: Final = 1_024
"""One record is enough; brokers return at least one even if it is larger."""
_ANSWERS: Final = {
    KafkaError.NO_ERROR,
    KafkaError._PARTITION_EOF,  # noqa: SLF001 - the library's own name for it
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}


class _Tried(NamedTuple):
    """A check that found records or got no answer: for which offset, and when to repeat it."""

    committed: int
    due_at: float
    wait_s: float


class _AskedEnds(NamedTuple):
    """The ends of a log that clients got to wait for, and when the last one did (monotonic seconds)."""

    ends: set[int]
    at: float


class IdleGroups:
    """Raises the marks of groups that have nothing left to read, and settles uncertain offsets."""

    def __init__(self, settings: KafkaSettings, groups: GroupWatch, topics: TopicWatch) -> None:
        self._settings: Final = settings
        self._groups: Final = groups
        self._marks: Final = groups.marks
        self._ends: Final = topics.marks
        self._probe: VisibleRecords | None = None
        """Opened by the thread with its first check."""
        self._thread: Final = ThreadPoolExecutor(1, "kafka-probe")
        self._tried: dict[CommitName, _Tried] = {}
        self._doubts: dict[CommitName, UncertainOffset] = {}
        self._wake = asyncio.Event()
        self.wanted: frozenset[CommitName] = frozenset()
        self.urgent: dict[CommitName, float] = {}
        self._asked_ends: dict[CommitName, _AskedEnds] = {}

    def want(self, names: frozenset[CommitName]) -> None:
        """Set the names with pending waits."""
        self.wanted = names
        self._tried = {name: tried for name, tried in self._tried.items() if name in names}
        now = time.monotonic()
        # The wait for an end follows the answer, so it may not be registered yet.
        self._asked_ends = {
            name: asked for name, asked in self._asked_ends.items() if name in names or now - asked.at < ENDS_S
        }
        self._wake.set()

    def ask(self, name: CommitName, end: int) -> None:
        """Check this now, even if its group is still committing, because a client got this end to wait for.

        The end of a time in the past may be far below that of the log. It is checked first: the group may have visible
        records to read above it, but none below.
        """
        self.urgent[name] = time.monotonic()
        ends = {end, *self._unreached(name)[: ENDS_MAX - 1]}
        self._asked_ends[name] = _AskedEnds(ends, self.urgent[name])
        self._tried.pop(name, None)
        self._wake.set()

    def doubt(self, doubts: Iterable[UncertainOffset]) -> None:
        self._doubts.update((doubt.name, doubt) for doubt in doubts)
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            is_busy = await self._settle() | await self._look()
            if is_busy:
                continue
            if self.wanted or self._doubts:
                await asyncio.sleep(UNMOVED_S / 2)
            else:
                await self._wake.wait()

    async def close(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, probe.close)
        self._thread.shutdown(wait=False)

    async def _settle(self) -> bool:
        """Settle uncertain offsets: check for visible records between the committed offset and the daemon's mark."""
        spans: dict[Partition, UncertainOffset] = {}
        settled: list[GroupMove] = []
        for name, doubt in list(self._doubts.items()):
            end = self._ends.end(name[1:])
            if end < 0:
                continue  # not known yet; if the topic was deleted, its marks are removed with it
            if end < doubt.published:
                del self._doubts[name]
                settled += self._marks.settled(doubt, is_drained=False, now=time.monotonic())
            elif name[1:] not in spans:
                spans[name[1:]] = doubt
        found = await self.probe({partition: (one.committed, one.published) for partition, one in spans.items()})
        for partition, is_drained in found.items():
            if is_drained is None:
                continue
            doubt = spans[partition]
            del self._doubts[doubt.name]
            changes = self._marks.settled(doubt, is_drained=is_drained, now=time.monotonic())
            # The daemon has the mark, but this run of the source has not observed it yet.
            mark = self._marks.get(doubt.name)
            # The group may have been reset during the check; the published mark is then no longer valid.
            is_kept = is_drained and mark is not None and mark[1] == doubt.published
            settled += changes or ([MarkMove(doubt.name, doubt.published)] if is_kept else [])
        self._groups.publish(settled)
        return any(answer is not None for answer in found.values())

    async def _look(self) -> bool:
        now = time.monotonic()
        self.urgent = {name: at for name, at in self.urgent.items() if now - at < PROBE_S}
        chosen: dict[Partition, tuple[CommitName, int, int]] = {}
        for name in [*self.urgent, *self.wanted]:
            partition = name[1:]
            end = self._ends.end(partition)
            if partition in chosen or end < 0 or not self._groups.knows(name[0]):
                continue
            committed, mark, moved_at = self._marks.get(name) or (NO_COMMIT, NO_COMMIT, 0)
            end = min([end, *self._unreached(name)])
            tried = self._tried.get(name)
            if mark >= end or (name not in self.urgent and now - moved_at < UNMOVED_S):
                continue
            if tried is None or tried.committed != committed or tried.due_at <= now:
                chosen[partition] = name, committed, end
        found = await self.probe({partition: span[1:] for partition, span in chosen.items()})
        changes: list[GroupMove] = []
        for partition, is_drained in found.items():
            name, committed, end = chosen[partition]
            self.urgent.pop(name, None)
            # If the log was truncated or recreated during the check, the result does not apply to its current content.
            if is_drained and self._ends.end(partition) >= end:
                changes += self._marks.prove(name, committed, end)
                self._tried.pop(name, None)
                continue
            before = self._tried.get(name)
            wait_s = AGAIN_MIN_S
            if before is not None and before.committed == committed and is_drained is not None:
                wait_s = min(before.wait_s * 2, AGAIN_MAX_S)
            self._tried[name] = _Tried(committed, time.monotonic() + wait_s, wait_s)
        self._groups.publish(changes)
        return bool(chosen)

    def _unreached(self, name: CommitName) -> list[int]:
        """The ends above the mark that clients wait for, in ascending order."""
        asked, known = self._asked_ends.get(name), self._marks.get(name)
        mark = NO_COMMIT if known is None else known[1]
        return [] if asked is None else sorted(end for end in asked.ends if end > mark)

    async def probe(self, spans: Mapping[Partition, tuple[int, int]]) -> dict[Partition, bool | None]:
        """Call `VisibleRecords.none_between` in the probing thread."""
        if not spans:
            return {}
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask_now, spans)

    def _ask_now(self, spans: Mapping[Partition, tuple[int, int]]) -> dict[Partition, bool | None]:
        if self._probe is None:
            self._probe = VisibleRecords(self._settings)
        return self._probe.none_between(spans, PROBE_S)


class VisibleRecords:
    """Checks partitions of one cluster, which it needs the right to read. Not thread-safe, and each check blocks."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._consumer: Final = Consumer(
            settings.librdkafka(
                fetch_wait_max_ms=FETCH_WAIT_MS,
                fetch_message_max_bytes=FETCH_BYTES,
                enable_partition_eof=True,
                auto_offset_reset="earliest",  # if the offsets up to the start of the log were deleted
                isolation_level=settings.isolation,
            )
        )

    def none_between(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float = 2.0
    ) -> dict[Partition, bool | None]:
        """For each partition and its (committed offset, end): whether the log has no visible record in that range.

        None: unknown. Either the topic may not be read, or the answer took too long, for example because a broker is
        down or a transaction that began before the end is still open. Try again later. A negative committed offset
        means the start of the log.
        """
        answers: dict[Partition, bool | None] = dict.fromkeys(spans)
        self._consumer.assign(
            [TopicPartition(topic, number, max(first, 0)) for (topic, number), (first, _) in spans.items()]
        )
        deadline = time.monotonic() + timeout_s
        left = set(spans)
        try:
            while left and (left_s := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(left_s)
                if message is None:
                    continue
                topic, number, offset = message.topic(), message.partition(), message.offset()
                if topic is None or number is None:
                    continue  # a group error, for example because it may not be described; the group is not used
                partition, error = (topic, number), message.error()
                code = KafkaError.NO_ERROR if error is None else error.code()
                if partition not in left or code not in _ANSWERS:
                    continue  # for example because a broker is down
                left.remove(partition)
                # A record, or the end of what can be read: nothing is visible before it.
                if code != KafkaError.TOPIC_AUTHORIZATION_FAILED and offset is not None:
                    is_drained = offset >= spans[partition][1]
                    answers[partition] = is_drained if is_drained or error is None else None
                self._consumer.incremental_unassign([TopicPartition(*partition)])
        finally:
            self._consumer.unassign()
        return answers

    def close(self) -> None:
        self._consumer.close()
