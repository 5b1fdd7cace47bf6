"""The interface of a replicated log: all that a fleet needs of Kafka or PostgreSQL."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from purgatory.replicated_log.entry import Entry
from purgatory.replicated_log.errors import LogRefused


class Place(NamedTuple):
    """Where and when an entry was appended. Both are the log's; see `Entry`."""

    position: int
    logged_ms: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot.

    Attributes:
        position: Position of the last entry that it includes.
        read: Reads its chunks, in order. Raises LogRefused for a wrong checksum, LogUnavailable.
    """

    position: int
    read: Callable[[], Iterator[bytes]]


def checked_chunk(number: int, content: bytes | None, crc32: int) -> bytes:
    """A chunk of a snapshot whose checksum is correct. Raises LogRefused."""
    if content is None or zlib.crc32(content) != crc32:
        what = "missing" if content is None else "damaged"
        raise LogRefused(f"chunk {number} of the snapshot is {what}: wait for the next snapshot")
    return content


class ReplicatedLog(Protocol):
    """The log of one shard. Positions rise from entry to entry; Kafka may leave gaps.

    An object is used by one thread at a time; a second thread opens its own. Every call may raise LogUnavailable, and
    none blocks for longer than a few seconds.
    """

    def create(self, shards: int) -> None:
        """Create the log of a fleet, and its origin in each shard. A log that exists is left as it is.

        Raises:
            LogRefused: It cannot be created, or has another number of shards.
        """

    def check(self, shards: int | None) -> None:
        """Check that the log exists, with this number of shards, and has the settings on which the promises depend.
        Weak ones are logged. None: any number of shards, and the caller only reads.

        Raises:
            LogRefused: The log or a permission is missing, or a setting is wrong; the message names it.
        """

    def end(self) -> int:
        """The position after the last entry, asked of the log now."""

    def read(self, start: int, wait_s: float) -> list[Entry]:
        """Read entries in order.

        Args:
            start: Position of the first one; the position after the last one that was read.
            wait_s: How long to wait for the first one.

        Returns:
            Some of the entries; none if there was none in time.

        Raises:
            LogTrimmed: `start` is before the beginning of the log.
            LogLost: `start` is behind the end of the log.
            LogRefused: An entry has a newer format.
        """

    def begin(self, entry: Entry, position: int) -> None:
        """Send an entry; `finish` must follow. Only `LogWriter` calls both. `position` is the one after the last entry
        that the caller has read.
        """

    def finish(self, timeout_s: float) -> Place | None:
        """Wait for the answer to the entry that was sent. An answer does not mean that the entry counts.

        Returns:
            Where the entry is. None: only reading from `position` tells whether it is in the log.

        Raises:
            LogUnavailable: The outcome is unknown: the entry may be in the log, or arrive there later.
            LogLost: The entry before `position` is no longer in the log.
        """

    def put_snapshot(self, position: int, chunks: Sequence[bytes]) -> None:
        """Store a snapshot next to the log. It includes the entries up to a position; its chunks have at most
        `PART_BYTES_MAX` each.
        """

    def last_snapshot(self, below: int | None = None) -> Snapshot | None:
        """The complete snapshot with the highest position, less than `below` if that is given; None: there is none."""

    def trim(self, below: int) -> None:
        """Delete all entries and snapshots below a position, which is at most that of a complete snapshot. The last
        entry is always kept.
        """

    def close(self) -> None:
        """Close all connections."""
