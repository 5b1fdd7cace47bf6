"""The contract of every replicated log. A class for each log derives from `LogContract`; its module has the fixture
`open_shard`, which opens a shard of a new fleet's log with two shards.

`MemoryLog` is a log in memory, whose clock is set by hand. It appends at any position, as Kafka does.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final, TypeVar

import pytest

from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import Fenced, LogLost, LogTrimmed, LogUnavailable
from purgatory.replicated_log.log_writer import LogWriter
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replicated_log import Place, ReplicatedLog, Snapshot
from tests.fleet.audit import read_all

PATIENT_S: Final = 120.0
"""Servers are slow while other tests run."""
OpenShard = Callable[[int], ReplicatedLog]
T = TypeVar("T")


def patient(call: Callable[[], T]) -> T:
    """Return the result of a call, which is repeated while the log does not answer."""
    until = time.monotonic() + PATIENT_S
    while True:
        try:
            return call()
        except LogUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def catch_up(writer: LogWriter, log: ReplicatedLog) -> None:
    """Read and apply everything up to the end of the log as of now."""
    end = log.end()
    while writer._reign.state.position + 1 < end:
        writer.follow(1.0)


def new_writer(log: ReplicatedLog, seen: list[Entry] | None = None, reign: Reign | None = None) -> LogWriter:
    """A writer that has read the log to its end, and may claim. Its entries are added to `seen`."""
    writer = LogWriter(log, reign or Reign(), ([] if seen is None else seen).append, PATIENT_S)
    patient(lambda: catch_up(writer, log))
    return writer


def entries_from(log: ReplicatedLog, start: int) -> list[Entry]:
    """The entries of one read, which must find some."""
    until = time.monotonic() + PATIENT_S
    while time.monotonic() < until:
        if found := patient(lambda: log.read(start, 0.5)):
            return found
    raise AssertionError("nothing to read")


class LogContract:
    @pytest.fixture
    def shard(self, open_shard: OpenShard) -> Iterator[ReplicatedLog]:
        """The second of the two shards."""
        with closing(open_shard(1)) as log:
            yield log

    def test_entries_are_read_as_they_were_appended(self, shard: ReplicatedLog, open_shard: OpenShard) -> None:
        """Each entry is read back unchanged, with its position and the log's time. The other shard has its origin only,
        and `create` leaves a log that exists as it is.
        """
        writer = new_writer(shard)
        written = [writer.claim(-5, "a:1", "a:2"), writer.append(Kind.GROUP, 5, b"\0\xff" * 9)]
        written += [writer.append(Kind.HEARTBEAT, 6), writer.append(Kind.RESIGNATION, 7)]
        reign = Reign()
        judged = [reign.accept(entry) for entry in patient(lambda: list(read_all(shard)))]
        origin, *read = [one for one in judged if one is not None]
        assert (origin.kind, read) == (Kind.ORIGIN, written)
        assert all(abs(entry.logged_ms / 1_000 - time.time()) < 3_600 for entry in written)
        end = patient(shard.end)
        assert end > written[-1].position
        assert patient(lambda: shard.read(end, 0.1)) == []
        with closing(open_shard(0)) as other:
            for _ in range(2):
                assert patient(other.end) == 1
                shard.create(2)
            [other_origin] = entries_from(other, 0)
        assert (other_origin.log_id, len(origin.log_id)) == (origin.log_id, 16)

    def test_large_group_is_read_back_whole(self, shard: ReplicatedLog) -> None:
        seen: list[Entry] = []
        writer, reader = new_writer(shard), LogWriter(shard, Reign(), seen.append)
        writer.claim(0)
        assert writer.append(Kind.GROUP, 7, b"x" * 2_000_000).number == 3
        patient(lambda: catch_up(reader, shard))
        assert [len(one.content) for one in seen if not one.more] == [0, 0, 2_000_000]

    def test_newest_snapshot_is_found_and_trimming_keeps_what_follows(self, shard: ReplicatedLog) -> None:
        writer = new_writer(shard)
        writer.claim(0)
        positions = [writer.append(Kind.GROUP, 0).position for _ in range(5)]
        end = patient(shard.end)
        assert patient(shard.last_snapshot) is None
        patient(lambda: shard.put_snapshot(positions[1], [b"old"]))
        patient(lambda: shard.put_snapshot(positions[3], [b"\0" * 900_000, b"end"]))
        newest = patient(shard.last_snapshot)
        assert newest is not None
        assert newest.position == positions[3]
        assert patient(lambda: list(newest.read())) == [b"\0" * 900_000, b"end"]
        older = patient(lambda: shard.last_snapshot(newest.position))
        assert (older and older.position) == positions[1]
        patient(lambda: shard.trim(newest.position))
        assert patient(lambda: shard.last_snapshot(newest.position)) is None
        with pytest.raises(LogTrimmed, match=f"begins at position {positions[3]}, after position 0"):
            entries_from(shard, 0)
        assert entries_from(shard, positions[3])[-1].position == end - 1
        with pytest.raises(LogLost, match=f"ends at position {end}, before position {end + 4}"):
            entries_from(shard, end + 4)
        assert patient(shard.end) == end

    def test_deposed_leader_is_fenced_at_its_next_append(self, shard: ReplicatedLog, open_shard: OpenShard) -> None:
        with closing(open_shard(1)) as other:
            seen: list[Entry] = []
            old, reign = new_writer(shard), Reign()
            old.claim(0)
            new = new_writer(other, seen, reign)
            old.append(Kind.GROUP, 7, b"once")
            new.claim(0)  # finds the group on its way, and applies it
            assert [entry.content for entry in seen] == [b"", b"", b"once"]
            with pytest.raises(Fenced, match="epoch 2"):
                old.append(Kind.GROUP, 8, b"void")
            with pytest.raises(Fenced, match="does not lead"):
                old.append(Kind.GROUP, 8)
            assert new.append(Kind.GROUP, 9, b"next").number == 2

    def test_one_of_several_claims_is_valid_and_the_others_can_claim_again(self, open_shard: OpenShard) -> None:
        logs = [open_shard(1) for _ in range(4)]
        writers = [new_writer(log) for log in logs]
        barrier, won = threading.Barrier(4), []

        def claim(index: int) -> None:
            barrier.wait(PATIENT_S)
            try:
                writers[index].claim(0)
                won.append(index)
            except Fenced:
                pass

        threads = [threading.Thread(target=claim, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENT_S)
        assert len(won) == 1
        loser = next(index for index in range(4) if index not in won)
        assert writers[loser].claim(0).epoch == 2
        for log in logs:
            log.close()


class MemoryLog(ReplicatedLog):
    """One shard. A read that finds nothing lasts as long as it may wait."""

    def __init__(self, now_s: float = 1_000.0, ahead_s: float = 3_600.0) -> None:
        self.now_s = now_s
        self.ahead_s = ahead_s
        """How far the log's wall clock is ahead."""
        self.entries: Final[list[Entry]] = []
        self.before_claim: list[Entry] = []
        """Entries that arrive between a standby's last read and its claim."""
        self.on_read: Final[dict[int, Callable[[], object]]] = {}
        """Actions before a read, by the number of the read."""
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
