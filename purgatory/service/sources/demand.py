"""Demand: which of the names that sources feed have pending waits. Changes are sent to the sources.

The engine's hot path is not involved. Each batch of registrations has a dictionary of its partitions, which is read at
once, and only while a source is attached. Names without waits are found by querying the engine for the names already
sent, a slice at a time.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from purgatory import sizes
from purgatory.engine.batches import PartitionName
from purgatory.engine.engine import Engine
from purgatory.service.sources.source_table import SourceStream

LOST_CHECK_S: Final = 0.5
NAME_BYTES: Final = 200
"""Estimated maximum memory of a name that was sent to one source, bytes."""


class DemandOfStream:
    """The names in demand, as sent to one source."""

    def __init__(self, stream: SourceStream, woken: asyncio.Event) -> None:
        self.stream: Final = stream
        self.names: Final[set[PartitionName]] = set()
        self._untold: Final[dict[PartitionName, bool]] = {}
        """Changes since the last message: gained (True) or lost."""
        self._woken: Final = woken

    def gain(self, name: PartitionName) -> None:
        if name not in self.names:
            # Recorded before it is sent: from now on `drop_lost` looks whether the name still has waits.
            self.names.add(name)
            self._change(name, gained=True)

    def lose(self, name: PartitionName) -> None:
        if name in self.names:
            self.names.remove(name)
            self._change(name, gained=False)

    def take(self, count_max: int) -> tuple[list[PartitionName], list[PartitionName]]:
        """Return and clear the names gained and lost since the last call, at most `count_max` of them."""
        gained: list[PartitionName] = []
        lost: list[PartitionName] = []
        while self._untold and len(gained) + len(lost) < count_max:
            name, is_gained = self._untold.popitem()
            (gained if is_gained else lost).append(name)
        return gained, lost

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)

    def _change(self, name: PartitionName, *, gained: bool) -> None:
        if self._untold.pop(name, None) is None:  # otherwise the name is back in the state that was sent
            self._untold[name] = gained
        self._woken.set()


class Demand:
    """The demand of all attached sources."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._attached: Final[list[DemandOfStream]] = []
        self.is_wanted = False
        """Whether any source is attached, so that demand has to be tracked."""

    @property
    def held_bytes(self) -> int:
        return sum(NAME_BYTES * len(demand.names) for demand in self._attached)

    def attach(self, stream: SourceStream, woken: asyncio.Event) -> DemandOfStream:
        """Track the demand of a source from now on; `begin` adds existing waits. `woken` is set when there is a change
        to send.
        """
        demand = DemandOfStream(stream, woken)
        self._attached.append(demand)
        self.is_wanted = True
        return demand

    def detach(self, demand: DemandOfStream) -> None:
        self._attached.remove(demand)
        self.is_wanted = bool(self._attached)

    async def begin(self, demand: DemandOfStream) -> None:
        """Add all names that have pending waits now. Call after `attach`: registrations between slices count too."""
        names = self._engine.inspection.partition_names()
        for start in range(0, len(names), sizes.DEMAND_NAMES_PER_SLICE):
            self._note(demand, names[start : start + sizes.DEMAND_NAMES_PER_SLICE])
            await asyncio.sleep(0)

    def registered(self, names: Iterable[PartitionName]) -> None:
        """A batch of operations that name these partitions was registered."""
        for demand in self._attached:
            self._note(demand, names)

    async def drop_lost(self) -> None:
        """Find names that no longer have any waits."""
        for demand in list(self._attached):
            # A copy: `lose` changes the set, and other tasks run between two slices.
            names = list(demand.names)
            for start in range(0, len(names), sizes.DEMAND_NAMES_PER_SLICE):
                for name in names[start : start + sizes.DEMAND_NAMES_PER_SLICE]:
                    if not self._engine.inspection.has_waits(name):
                        demand.lose(name)
                await asyncio.sleep(0)

    def _note(self, demand: DemandOfStream, names: Iterable[PartitionName]) -> None:
        prefixes, known, has_waits = demand.stream.topic_prefixes, demand.names, self._engine.inspection.has_waits
        for name in names:
            # The engine is asked last: it is the most expensive of the three, and an operation that ended at once has
            # left no wait.
            if name not in known and name[0].startswith(prefixes) and has_waits(name):
                demand.gain(name)
