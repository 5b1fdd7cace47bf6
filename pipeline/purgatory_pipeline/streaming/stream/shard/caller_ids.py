"""Maps engine ids, which the engine assigns in order, to callers and their own operation ids."""

from typing import Final

import numpy as np
import pyarrow as pa

from purgatory_pipeline.engine_rows.integers import Flags, Hashes, Integers
from purgatory_pipeline.streaming.stream.shard.stream_rows import hashes_of

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
        self._hashes: Hashes = hashes_of(self.table.column("caller"), self.table.column("operation_id").to_numpy())

    def __len__(self) -> int:
        return len(self._engine_ids)

    @property
    def hashes(self) -> Hashes:
        return self._hashes

    def add(self, more: pa.Table, hashes: Hashes) -> None:
        """Adds operations; their engine ids are above all others."""
        self.table = pa.concat_tables([self.table, more]).combine_chunks()
        self._engine_ids = np.concatenate([self._engine_ids, more.column("engine_id").to_numpy()])
        self._hashes = np.concatenate([self._hashes, hashes])

    def places(self, engine_ids: Integers) -> Integers:
        """The rows of these operations, all of which are there."""
        found: Integers = np.searchsorted(self._engine_ids, engine_ids)
        return found

    def present(self, engine_ids: Integers) -> Integers:
        """The subset of these operations that is pending."""
        places = np.searchsorted(self._engine_ids, engine_ids)
        known = places < len(self._engine_ids)
        known[known] = self._engine_ids[places[known]] == engine_ids[known]
        return engine_ids[known]

    def keep(self, kept: Flags) -> None:
        """Keep only the operations in the mask."""
        self.table = self.table.filter(pa.array(kept))
        self._engine_ids = self._engine_ids[kept]
        self._hashes = self._hashes[kept]
