"""Maps engine ids, which the engine assigns in order, to callers and their own operation ids, and finds repetitions.

An operation that is sent again is ignored while the first one is pending, and is new after that. Operations do not
affect each other, so all are registered first, and duplicates are removed afterwards: an operation counts if every
earlier counted one with the same caller and id had ended in an earlier millisecond.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory_pipeline.engine_rows.integers import Flags, Hashes, Integers
from purgatory_pipeline.stream.stream_rows import hashes_of

CALLERS: Final = pa.schema(
    [
        ("engine_id", pa.int64()),  # rising
        ("caller", pa.string()),
        ("operation_id", pa.int64()),
        ("registered_ms", pa.int64()),
    ]
)


class CallerIds:
    """Pending operations, by the engine's id and by their caller's."""

    def __init__(self, table: pa.Table | None = None) -> None:
        self.table: pa.Table = CALLERS.empty_table() if table is None else table
        self._engine_ids: Integers = self.table.column("engine_id").to_numpy()
        self.hashes: Hashes = hashes_of(self.table.column("caller"), self.table.column("operation_id").to_numpy())

    def __len__(self) -> int:
        return len(self._engine_ids)

    def add(self, more: pa.Table, hashes: Hashes) -> None:
        """Adds operations; their engine ids are above all others."""
        self.table = pa.concat_tables([self.table, more]).combine_chunks()
        self._engine_ids = np.concatenate([self._engine_ids, more.column("engine_id").to_numpy()])
        self.hashes = np.concatenate([self.hashes, hashes])

    def places(self, engine_ids: Integers) -> Integers:
        """The rows of these operations, all of which are there."""
        found: Integers = np.searchsorted(self._engine_ids, engine_ids)
        return found

    def present(self, engine_ids: Integers) -> Integers:
        places = np.searchsorted(self._engine_ids, engine_ids)
        known = places < len(self._engine_ids)
        known[known] = self._engine_ids[places[known]] == engine_ids[known]
        return engine_ids[known]

    def keep(self, kept: Flags) -> None:
        self.table = self.table.filter(pa.array(kept))
        self._engine_ids = self._engine_ids[kept]
        self.hashes = self.hashes[kept]


FILTER_SIZE: Final = 1 << 21
"""Entries, a power of two: well above the operations of a batch."""


class Repeats:
    """`groups`: of each operation that occurs more than once, the engine ids and registration times, in order."""

    def __init__(self, groups: Sequence[list[tuple[int, int]]]) -> None:
        self._groups: Final = groups

    def __bool__(self) -> bool:
        return bool(self._groups)

    @staticmethod
    def among(pending: CallerIds, arriving: pa.Table, hashes: Hashes) -> "Repeats":
        """Find repetitions among pending and arriving operations (rows of `CALLERS`, in order)."""
        # A table of a few hash bits, which fits the cache, excludes most pending operations. Sorting or hashing all of
        # them would take many times as long as the engine itself.
        bits = np.uint64(FILTER_SIZE - 1)
        arrives = np.zeros(FILTER_SIZE, np.bool_)
        arrives[hashes & bits] = True
        suspects = np.flatnonzero(arrives[pending.hashes & bits])
        both = np.concatenate([pending.hashes[suspects], hashes])
        distinct, counts = np.unique(both, return_counts=True)
        if len(distinct) == len(both):
            return Repeats([])
        every = np.concatenate([suspects, np.arange(len(pending), len(pending) + len(hashes))])
        places = every[np.isin(both, distinct[counts > 1])]
        rows = pa.concat_tables([pending.table, arriving]).take(pa.array(places)).to_pydict()
        groups = defaultdict(list)
        columns = (rows[name] for name in ("caller", "operation_id", "engine_id", "registered_ms"))
        for caller, operation_id, engine_id, registered_ms in zip(*columns, strict=True):
            groups[caller, operation_id].append((engine_id, registered_ms))
        return Repeats([group for group in groups.values() if len(group) > 1])

    def dropped(self, ended_ids: Integers, outcomes: pa.Table) -> Integers:
        """Engine ids of ignored repetitions. `outcomes` has one row for each operation that has ended."""
        ended_us = outcomes.column("ended_at").cast(pa.int64()).to_numpy()
        ended_ms = dict(zip(ended_ids.tolist(), (ended_us // 1_000).tolist(), strict=True))
        found: list[int] = []
        for group in self._groups:
            counted = group[0][0]
            for engine_id, registered_ms in group[1:]:
                if counted in ended_ms and ended_ms[counted] < registered_ms:
                    counted = engine_id
                else:
                    found.append(engine_id)
        return np.array(found, np.int64)
