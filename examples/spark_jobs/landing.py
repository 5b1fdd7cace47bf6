"""A folder in which files land, to be processed one after another by a streaming query."""

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


class Landing:
    """Files of JSON lines. The query processes one file per micro-batch, in order: mark n means that n files are
    processed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._count = len(list(folder.glob("*.json")))
        self._changed_ms = 0

    def land(self, rows: Iterable[Mapping[str, object]]) -> int:
        """Put a file into the folder; returns the mark that shows that the query has processed it."""
        with self._lock:
            self._count += 1
            path = self._folder / f".{self._count:06d}"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
            # Spark orders files by modification time in ms: two files of the same ms could be swapped.
            self._changed_ms = max(time.time_ns() // 1_000_000, self._changed_ms + 1)
            os.utime(path, ns=(self._changed_ms * 1_000_000,) * 2)
            path.rename(self._folder / f"{self._count:06d}.json")
            return self._count

    def stream(self, session: SparkSession, schema: str) -> DataFrame:
        """The rows as a stream."""
        return session.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._folder))
