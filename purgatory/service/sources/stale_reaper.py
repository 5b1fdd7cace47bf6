"""The task that fails waits whose marks are stale, or were never reported, for longer than their stale timeout.

It sleeps while no pending wait has a stale timeout. A mark that has never been reported counts as stale for as long as
any operation waits for it: its name may be mistyped, and no source may feed it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from purgatory.clock import EngineTime, ListeningTime
from purgatory.engine import codes
from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.service.loop_stalls import StallTimer
from purgatory.service.sources.source_table import SourceTable

LOGGER: Final = logging.getLogger(__name__)

CHECK_S: Final = 0.1
"""Interval between checks, seconds: the maximum delay of a stale failure while the loop is free."""
CHECKED_PER_SLICE: Final = 1_000
"""Operations checked before other tasks run."""

ALWAYS_MS: Final = 2**62
"""Longer than any stale timeout."""

Fail = Callable[[int, list[int], set[PartitionName]], None]
"""Fails operations of an owner (by id), at most one slice of work, because of the marks."""


class StaleReaper:
    """Fails operations whose stale timeout has passed."""

    def __init__(
        self,
        engine: Engine,
        time: EngineTime,
        listening: ListeningTime,
        sources: SourceTable,
        fail: Fail,
        held: StallTimer,
    ) -> None:
        self._engine: Final = engine
        self._time: Final = time
        self._listening: Final = listening
        self._sources: Final = sources
        self._fail: Final = fail
        self._held: Final = held
        self._woken: Final = asyncio.Event()

    def may_have_come(self) -> None:
        """Wake the reaper. Call after registering operations with a stale timeout."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled. An exception in one round does not end the task."""
        while True:
            if not self._engine.has_stale_waits:
                # No await since the engine was asked, so a registration in between cannot be missed.
                self._woken.clear()
                await self._woken.wait()
            await asyncio.sleep(CHECK_S)
            try:
                if self._engine.has_unreported or self._sees_not_all():
                    await self.check()
            except Exception:
                LOGGER.exception("checking for stale waits failed; will be retried")

    def _sees_not_all(self) -> bool:
        now_ms = self._listening.now_ms()
        streams = (stream for source in self._sources for stream in source.all_streams())
        return any(stream.stale_since_ms(now_ms) is not None for stream in streams)

    async def check(self) -> None:
        """Check all operations that have a stale timeout, in slices."""
        slots = self._engine.stale_waits.slots()
        for start in range(0, len(slots), CHECKED_PER_SLICE):
            with self._held:
                self._check(slots[start : start + CHECKED_PER_SLICE])
            await asyncio.sleep(0)

    def _check(self, slots: list[int]) -> None:
        waits, now_ms = self._engine.stale_waits, self._time.now_ms()
        stale = self._stale_ms(waits.names(slots), self._listening.now_ms())
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for slot in waits.due(slots, stale, now_ms) if stale else ():
            by_owner[waits.owner_id(slot)].append(slot)
        # At most a slice of each: the next check finds the others again.
        for owner_id, own in by_owner.items():
            operation_ids = sorted(waits.operation_id(slot) for slot in own)
            self._fail(owner_id, operation_ids, {name for name in waits.names(own) if name in stale})

    def _stale_ms(self, names: list[PartitionName], now_ms: int) -> dict[PartitionName, int]:
        marks = ((name, self._sources.stale(name, now_ms)) for name in names)
        stale_ms = {name: mark.ms(now_ms) for name, mark in marks if mark is not None}
        stale_ms.update(dict.fromkeys(self._engine.inspection.unreported(names), ALWAYS_MS))
        return stale_ms


UNREPORTED: Final = "nothing was ever reported for this mark: no source feeds it, or its name is mistyped"


def note_stale_marks(completions: Completions, sources: SourceTable, now_ms: int) -> None:
    """For operations that just expired or failed: record how long, and why, their unreached marks have been stale."""
    found: dict[int, tuple[int, str]] = {}
    item = 0
    for row, outcome in enumerate(completions.outcomes):
        stop = item + completions.item_counts[row]
        if outcome in (codes.EXPIRED, codes.FAILED):
            # In a failed wait the stale marks have this code already (`StaleWaits.fail`); in an expired one the
            # unreached marks are looked up.
            not_reached = codes.MARK_STALE
            if outcome == codes.EXPIRED:
                not_reached = codes.NONE if completions.kinds[row] == codes.FETCH else codes.REQUEST_TIMED_OUT
            for place in range(item, stop):
                if completions.error_codes[place] == not_reached:
                    mark = sources.stale(completions.item_partitions[place], now_ms)
                    if mark is not None:
                        found[place] = mark.ms(now_ms), mark.reason
                    elif not_reached == codes.MARK_STALE:
                        found[place] = completions.waited_ms[row], UNREPORTED
        item = stop
    if found:
        completions.stale_marks = found
