"""Finds groups that have nothing left to read although their committed offset is below the end of the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from purgatory_connectors.kafka.cluster_view import Partition
from purgatory_connectors.kafka.group_marks import NO_COMMIT, GroupMarks, MarkMove, UncertainOffset
from purgatory_connectors.kafka.offset_records import CommitName

UNMOVED_MS: Final = 100
"""A group that committed within this time is not checked; its next commit will decide."""
AGAIN_MIN_S: Final = 0.5
AGAIN_MAX_S: Final = 10.0
PROBE_S: Final = 2.0


class Probe(Protocol):
    """The interface of `VisibleRecords`."""

    def none_between(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float = ...
    ) -> dict[Partition, bool | None]:
        """See `VisibleRecords`."""

    def close(self) -> None:
        """See `VisibleRecords`."""


class _Tried(NamedTuple):
    """A check that found records or got no answer: for which offset, and when to repeat it."""

    committed: int
    end: int
    due_at: float
    wait_s: float


class IdleGroups:
    """Raises the marks of groups that have nothing left to read, and settles uncertain offsets.

    `publish` receives marks that have moved; `end` returns the end of a partition, -1 if unknown; `knows` returns
    whether all offsets of a group have been read. `open_probe` is called once, in the probing thread.
    """

    def __init__(
        self,
        marks: GroupMarks,
        end: Callable[[Partition], int],
        publish: Callable[[Iterable[MarkMove]], None],
        knows: Callable[[str], bool],
        open_probe: Callable[[], Probe],
    ) -> None:
        self._marks = marks
        self._end = end
        self._publish = publish
        self._knows = knows
        self._open_probe = open_probe
        self._probe: Probe | None = None
        self._thread = ThreadPoolExecutor(1, "kafka-probe")
        self._tried: dict[CommitName, _Tried] = {}
        self._doubts: dict[CommitName, UncertainOffset] = {}
        self._wake = asyncio.Event()
        self.wanted: frozenset[CommitName] = frozenset()
        self.urgent: dict[CommitName, float] = {}

    def want(self, names: frozenset[CommitName]) -> None:
        """Set the names with pending waits."""
        self.wanted = names
        self._tried = {name: tried for name, tried in self._tried.items() if name in names}
        self._wake.set()

    def ask(self, names: Iterable[CommitName]) -> None:
        """Check these now, even if their groups are still committing, because a client requested their ends."""
        now = time.monotonic()
        for name in names:
            self.urgent[name] = now
            self._tried.pop(name, None)
        self._wake.set()

    def doubt(self, doubts: Iterable[UncertainOffset]) -> None:
        """Add uncertain offsets to settle."""
        self._doubts.update((doubt.name, doubt) for doubt in doubts)
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._wake.clear()
            is_busy = await self._settle() | await self._look()
            if is_busy:
                continue
            if self.wanted or self._doubts:
                await asyncio.sleep(UNMOVED_MS / 2000)
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
        settled: list[MarkMove] = []
        for name, doubt in list(self._doubts.items()):
            end = self._end(name[1:])
            if end < 0:
                continue  # not known yet; if the topic was deleted, its marks are removed with it
            if end < doubt.published:
                del self._doubts[name]
                settled += self._marks.settled(doubt, is_drained=False, now_ms=_now_ms())
            elif name[1:] not in spans:
                spans[name[1:]] = doubt
        found = await self.probe({partition: (one.committed, one.published) for partition, one in spans.items()})
        for partition, is_drained in found.items():
            if is_drained is None:
                continue
            doubt = spans[partition]
            del self._doubts[doubt.name]
            changes = self._marks.settled(doubt, is_drained=is_drained, now_ms=_now_ms())
            # The daemon has the mark, but this run of the source has not observed it yet.
            mark = self._marks.get(doubt.name)
            # The group may have been reset during the check; the published mark is then no longer valid.
            is_kept = is_drained and mark is not None and mark[1] == doubt.published
            settled += changes or ([MarkMove(doubt.name, doubt.published)] if is_kept else [])
        self._publish(settled)
        return any(answer is not None for answer in found.values())

    async def _look(self) -> bool:
        now, now_ms = time.monotonic(), _now_ms()
        self.urgent = {name: at for name, at in self.urgent.items() if now - at < PROBE_S}
        chosen: dict[Partition, tuple[CommitName, int, int]] = {}
        for name in [*self.urgent, *self.wanted]:
            partition = name[1:]
            end = self._end(partition)
            if partition in chosen or end < 0 or not self._knows(name[0]):
                continue
            committed, mark, moved_ms = self._marks.get(name) or (NO_COMMIT, NO_COMMIT, 0)
            tried = self._tried.get(name)
            if mark >= end or (name not in self.urgent and now_ms - moved_ms < UNMOVED_MS):
                continue
            if tried is None or tried.committed != committed or tried.due_at <= now:
                chosen[partition] = name, committed, end
        found = await self.probe({partition: span[1:] for partition, span in chosen.items()})
        changes: list[MarkMove] = []
        for partition, is_drained in found.items():
            name, committed, end = chosen[partition]
            self.urgent.pop(name, None)
            # If the log was truncated or recreated during the check, the result does not apply to its current content.
            if is_drained and self._end(partition) >= end:
                changes += self._marks.prove(name, committed, end)
                self._tried.pop(name, None)
                continue
            before = self._tried.get(name)
            wait_s = AGAIN_MIN_S
            if before is not None and before.committed == committed and is_drained is not None:
                wait_s = min(before.wait_s * 2, AGAIN_MAX_S)
            self._tried[name] = _Tried(committed, end, time.monotonic() + wait_s, wait_s)
        self._publish(changes)
        return bool(chosen)

    async def probe(self, spans: Mapping[Partition, tuple[int, int]]) -> dict[Partition, bool | None]:
        """Call `VisibleRecords.none_between` in the probing thread."""
        if not spans:
            return {}
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask_now, spans)

    def _ask_now(self, spans: Mapping[Partition, tuple[int, int]]) -> dict[Partition, bool | None]:
        if self._probe is None:
            self._probe = self._open_probe()
        return self._probe.none_between(spans, PROBE_S)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
