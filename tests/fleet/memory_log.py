"""A log in memory, whose clock is set by hand. It appends at any position, as Kafka does."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from purgatory.replicated_log.entry import Entry
from purgatory.replicated_log.errors import LogLost, LogTrimmed, LogUnavailable
from purgatory.replicated_log.replicated_log import Place, ReplicatedLog, Snapshot


class MemoryLog(ReplicatedLog):
    """One shard. A read that finds nothing lasts as long as it may wait."""

    def __init__(self, now_s: float = 1_000.0, ahead_s: float = 3_600.0) -> None:
        self.now_s = now_s
        self.ahead_s = ahead_s
        """By how much the log's wall clock is ahead."""
        self.entries: Final[list[Entry]] = []
        self.before_claim: list[Entry] = []
        """Entries that arrive between a standby's last read and its claim."""
        self.on_read: Final[dict[int, Callable[[], object]]] = {}
        """What happens before a read, by the number of the read."""
        self.outages = 0
        """Number of reads that fail."""
        self.stored: list[tuple[int, list[bytes]]] = []
        """Snapshots, with their positions."""
        self._first = self._reads = 0
        self._lock: Final = threading.Lock()

    def put(self, *entries: Entry) -> None:
        for entry in entries:
            self.entries.append(entry.at(self.end(), round((self.now_s + self.ahead_s) * 1_000)))

    def create(self, shards: int) -> None:
        if not self.entries:
            self.put(Entry.origin())

    def check(self, shards: int | None) -> None: ...

    def end(self) -> int:
        return self._first + len(self.entries)

    def read(self, start: int, wait_s: float) -> list[Entry]:
        self._reads += 1
        self.on_read.get(self._reads, lambda: None)()
        if self.outages:
            self.outages -= 1
            self.now_s += 0.5
            raise LogUnavailable("away")
        if start < self._first:
            raise LogTrimmed(f"the log begins at position {self._first}, after position {start}")
        if start > self.end():
            raise LogLost(f"the log ends at position {self.end()}, before position {start}")
        if start == self.end():
            self.now_s += wait_s
        return self.entries[start - self._first :]

    def begin(self, entry: Entry, position: int) -> None:
        with self._lock:
            self.put(*self.before_claim)
            self.before_claim.clear()
            self.put(entry)

    def finish(self, timeout_s: float) -> Place | None:
        return Place(self.entries[-1].position, self.entries[-1].logged_ms)

    def put_snapshot(self, position: int, chunks: Sequence[bytes]) -> None:
        self.stored.append((position, list(chunks)))

    def last_snapshot(self, below: int | None = None) -> Snapshot | None:
        found = [one for one in self.stored if below is None or one[0] < below]
        if not found:
            return None
        position, chunks = max(found)
        return Snapshot(position, lambda: iter(chunks))

    def trim(self, below: int) -> None:
        count = min(below, self.end() - 1) - self._first
        del self.entries[:count]
        self._first += count
        self.stored = [one for one in self.stored if one[0] >= below]

    def close(self) -> None: ...
