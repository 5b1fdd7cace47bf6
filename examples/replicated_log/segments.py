"""A log as segment files on disk: `<base offset>.log`, each a run of records (log_records.py). One process owns each.

Opening a directory again finds what was written: segments are scanned, and a record that a crash left half-written is
cut off. There is no fsync: a killed process loses nothing, a power cut may.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

from examples.replicated_log.log_records import CorruptRecord, LogRecord, decode, decode_all, encode

SEGMENT_BYTES: Final = 16 * 1024
"""Small, so that even a short input rolls over several segments."""
_LOG_START_FILE: Final = "log-start-offset"


class OffsetOutOfRange(Exception):
    """The offset is below the log's start or above its end."""


class Position(NamedTuple):
    """Where the log's end is: what a LEADER_APPEND tells the daemon, so that it can count bytes."""

    log_end_offset: int
    segment_base_offset: int
    byte_position: int


def records_on_disk(directory: Path) -> list[LogRecord]:
    """Every readable record of a log, whoever owns it, in order; changes nothing. CorruptRecord: one is harmed."""
    start_file = directory / _LOG_START_FILE
    log_start_offset = int(start_file.read_text()) if start_file.exists() else 0
    return [
        record
        for path in sorted(directory.glob("*.log"))
        for record in decode_all(path.read_bytes())
        if record.offset >= log_start_offset
    ]


class Segment:
    """One file, with the position of each of its records in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base_offset = int(path.stem)
        self.positions: list[int] = []
        self._file = path.open("a+b", buffering=0)
        self.size = self._recover()

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.positions)

    def append(self, encoded: bytes) -> None:
        written = os.write(self._file.fileno(), encoded)
        assert written == len(encoded), f"{self.path}: {written} of {len(encoded)} bytes written"
        self.positions.append(self.size)
        self.size += written

    def position_of(self, offset: int) -> int:
        """Where the record with this offset begins; the end of the file for the offset after the last."""
        index = offset - self.base_offset
        return self.positions[index] if index < len(self.positions) else self.size

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._file.fileno(), end - start, start)

    def close(self) -> None:
        self._file.close()

    def _recover(self) -> int:
        data = self.path.read_bytes()
        position = 0
        while position < len(data):
            try:
                record, end = decode(data, position)
            except CorruptRecord:
                break
            if record.offset != self.end_offset:
                break
            self.positions.append(position)
            position = end
        self._file.truncate(position)
        return position


class SegmentedLog:
    """Records with consecutive offsets in [log_start_offset, log_end_offset)."""

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        for path in sorted(directory.glob("*.log")):
            segment = Segment(path)
            if self._segments and segment.base_offset != self._segments[-1].end_offset:
                segment.close()
                path.unlink()  # it follows a segment whose end was cut
                continue
            self._segments.append(segment)
        if not self._segments:
            self._roll(0)
        start_file = directory / _LOG_START_FILE
        self.log_start_offset = int(start_file.read_text()) if start_file.exists() else self._segments[0].base_offset
        if self.log_start_offset > self.log_end_offset:
            self.reset(self.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self._segments[-1].end_offset

    @property
    def end_position(self) -> Position:
        last = self._segments[-1]
        return Position(last.end_offset, last.base_offset, last.size)

    def append(self, payload: bytes) -> int:
        offset = self.log_end_offset
        self._append_encoded(encode(LogRecord(offset, payload)))
        return offset

    def append_copy(self, encoded: bytes) -> int:
        """Appends records as another log holds them; returns how many. They must go on where this log ends."""
        count = 0
        for record in decode_all(encoded):
            if record.offset != self.log_end_offset:
                raise OffsetOutOfRange(f"record {record.offset} cannot follow on {self.log_end_offset - 1}")
            self._append_encoded(encode(record))
            count += 1
        return count

    def read(self, offset: int, end_offset: int, bytes_max: int) -> bytes:
        """Encoded records from `offset`, all below `end_offset`, of one segment, at most `bytes_max` but at least one.

        Nothing when `offset` is `end_offset` or above. OffsetOutOfRange: below the log's start or above its end.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}")
        if offset >= end_offset:
            return b""
        segment = next(segment for segment in reversed(self._segments) if segment.base_offset <= offset)
        start = segment.position_of(offset)
        last = min(end_offset, segment.end_offset)
        end_at_least = segment.position_of(offset + 1)
        while last > offset + 1 and segment.position_of(last) - start > bytes_max:
            last = offset + 1 + (last - offset - 1) // 2
        return segment.read(start, max(end_at_least, segment.position_of(last)))

    def trim(self, offset: int) -> None:
        """Makes `offset` the first readable one, unless it is lower, and deletes segments that lie wholly below it."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.log_start_offset:
            return
        self._set_log_start(offset)
        while len(self._segments) > 1 and self._segments[0].end_offset <= offset:
            segment = self._segments.pop(0)
            segment.close()
            segment.path.unlink()

    def reset(self, offset: int) -> None:
        """Forgets all records and goes on at `offset`: for a copy whose original begins beyond its end."""
        for segment in self._segments:
            segment.close()
            segment.path.unlink()
        self._segments.clear()
        self._roll(offset)
        self._set_log_start(offset)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()

    def _append_encoded(self, encoded: bytes) -> None:
        if self._segments[-1].size >= self._segment_bytes:
            self._roll(self.log_end_offset)
        self._segments[-1].append(encoded)

    def _roll(self, base_offset: int) -> None:
        self._segments.append(Segment(self._directory / f"{base_offset:020d}.log"))

    def _set_log_start(self, offset: int) -> None:
        aside = self._directory / (_LOG_START_FILE + ".new")
        aside.write_text(str(offset))
        aside.replace(self._directory / _LOG_START_FILE)
        self.log_start_offset = offset
