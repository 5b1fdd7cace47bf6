"""Histories as files, one per micro-batch and side: waits that their marks reach, and waits that stay pending."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.engine.codes import EVENT_NAMES, HIGH_WATERMARK, KIND_NAMES, PRODUCE

PARTITIONS: Final = 100
BEGIN_MS: Final = 1_700_000_000_000
"""In the past: rows ahead of the clock are set aside."""
STEP_MS: Final = 1_000
"""Event time between micro-batches."""
MARKS_AT_MS: Final = 950
NEVER: Final = 1 << 40
EXPIRE_ONE_IN: Final = 10
TIMEOUT_MS: Final = 3 * STEP_MS
LONG_MS: Final = 1_000_000_000


@dataclass
class StreamLoad:
    """Two folders of Parquet files with the columns of the archive."""

    folder: Path
    _files: int = 0
    _next_id: int = 1
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        for side in ("registrations", "events"):
            (self.folder / side).mkdir(parents=True)

    def answered(self, operations: int) -> None:
        """Add waits. Marks in the same file satisfy 90 % of them, and the rest expires three files later."""
        offsets = np.full(operations, self._files + 1)
        offsets[::EXPIRE_ONE_IN] = NEVER
        self._write("orders", offsets, TIMEOUT_MS)

    def staying(self, operations: int) -> None:
        """Add waits that nothing ends."""
        self._write("later", np.full(operations, NEVER), LONG_MS)

    def _write(self, topic: str, offsets: np.ndarray, timeout_ms: int) -> None:
        count, begin_ms = len(offsets), BEGIN_MS + self._files * STEP_MS
        at = pa.timestamp("ms", tz="UTC")
        ids = np.arange(self._next_id, self._next_id + count)
        registrations = {
            "at": pa.array(begin_ms + np.sort(self._rng.integers(0, MARKS_AT_MS, count)), at),
            "session_id": pa.array([""] * count),
            "operation_id": ids,
            "kind": pa.array([KIND_NAMES[PRODUCE]] * count),
            "timeout_ms": np.full(count, timeout_ms),
            "item": np.zeros(count, np.int32),
            "item_count": np.ones(count, np.int32),
            "topic": pa.array([topic] * count),
            "partition": (ids % PARTITIONS).astype(np.int32),
            "offset": offsets,
        }
        events = {
            "at": pa.array([begin_ms + MARKS_AT_MS] * PARTITIONS, at),
            "type": pa.array([EVENT_NAMES[HIGH_WATERMARK]] * PARTITIONS),
            "topic": pa.array([topic] * PARTITIONS),
            "partition": np.arange(PARTITIONS, dtype=np.int32),
            "offset": np.full(PARTITIONS, self._files + 1),
        }
        for side, columns in (("registrations", registrations), ("events", events)):
            path = self.folder / side / f"{self._files:05d}.parquet"
            pq.write_table(pa.table(columns), path)
            os.utime(path, (BEGIN_MS // 1_000 + self._files,) * 2)  # Spark takes the oldest first
        self._files += 1
        self._next_id += count
