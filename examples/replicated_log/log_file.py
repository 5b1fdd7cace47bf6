"""A log as one file of records with consecutive offsets. Each log belongs to one process.

    length of payload (u32) | CRC-32 of offset and payload (u32) | offset (u64) | payload

Opening a file again finds what was written; a record that a crash left half-written is cut off. Nothing is fsynced: a
killed process loses nothing, a power cut may. A real log has many such files, and deletes those that are trimmed.
"""

import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

HEADER: Final = struct.Struct(">IIQ")
_RECORDS_FILE: Final = "records.log"
_LOG_START_FILE: Final = "log-start-offset"


class CorruptRecord(Exception):
    """The bytes at this position are not a whole, unharmed record."""


class OffsetOutOfRange(Exception):
    """The offset is below the log's start or above its end, or does not follow on it."""


class LogRecord(NamedTuple):
    """One record: its place in the log and the bytes that were sent."""

    offset: int
    payload: bytes

    def encode(self) -> bytes:
        return HEADER.pack(len(self.payload), self._checksum(), self.offset) + self.payload

    @classmethod
    def decode(cls, data: bytes, position: int) -> tuple["LogRecord", int]:
        """The record at `position`, and the position after it. Raises CorruptRecord when it is cut short or harmed."""
        start = position + HEADER.size
        if start > len(data):
            raise CorruptRecord(f"position {position}: {len(data) - position} bytes are too short for a record header")
        length, checksum, offset = HEADER.unpack_from(data, position)
        record = cls(offset, bytes(data[start : start + length]))
        if len(record.payload) != length or record._checksum() != checksum:
            raise CorruptRecord(f"position {position}: record {offset} is cut short, or its checksum does not match")
        return record, start + length

    def _checksum(self) -> int:
        return zlib.crc32(self.payload, zlib.crc32(self.offset.to_bytes(8, "big")))


def decode_all(data: bytes) -> Iterator[LogRecord]:
    """Every record of `data`. Raises CorruptRecord unless it holds whole records only."""
    position = 0
    while position < len(data):
        record, position = LogRecord.decode(data, position)
        yield record


def records_on_disk(directory: Path) -> list[LogRecord]:
    """The records of a log, whoever owns it, read without changing anything. Raises CorruptRecord."""
    start = _log_start_on_disk(directory)
    return [record for record in decode_all((directory / _RECORDS_FILE).read_bytes()) if record.offset >= start]


def _log_start_on_disk(directory: Path) -> int:
    path = directory / _LOG_START_FILE
    return int(path.read_text()) if path.exists() else 0


class LogFile:
    """Records with the offsets from `log_start_offset` to `log_end_offset` (exclusive). `byte_size`: of the file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file = (directory / _RECORDS_FILE).open("a+b", buffering=0)
        self.log_start_offset = _log_start_on_disk(directory)
        self._first_offset = self.log_start_offset
        self._positions: list[int] = []
        """Where each record of the file begins."""
        self.byte_size = 0
        self._recover()

    @property
    def log_end_offset(self) -> int:
        return self._first_offset + len(self._positions)

    def append(self, payload: bytes) -> int:
        """Append a record; returns its offset."""
        offset = self.log_end_offset
        self._write(LogRecord(offset, payload).encode())
        return offset

    def append_copy(self, encoded: bytes) -> None:
        """Append records as another log holds them. Raises OffsetOutOfRange for one that does not follow on the end."""
        for record in decode_all(encoded):
            if record.offset != self.log_end_offset:
                raise OffsetOutOfRange(f"record {record.offset} cannot follow on {self.log_end_offset - 1}")
            self._write(record.encode())

    def read(self, offset: int, end_offset: int, bytes_max: int) -> bytes:
        """Encoded records from `offset`, all below `end_offset`: at most `bytes_max`, but at least one if there is one.

        Raises OffsetOutOfRange below the log's start or above its end.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}")
        if offset >= end_offset:
            return b""
        ends = [*self._positions, self.byte_size]
        first = offset - self._first_offset
        fitting = bisect_right(ends, ends[first] + bytes_max) - 1
        last = min(max(first + 1, fitting), end_offset - self._first_offset)
        return os.pread(self._file.fileno(), ends[last] - ends[first], ends[first])

    def trim(self, offset: int) -> None:
        """Make `offset` the first readable one, unless it is lower."""
        if offset > self.log_start_offset:
            aside = self._directory / (_LOG_START_FILE + ".new")
            aside.write_text(str(offset))
            aside.replace(self._directory / _LOG_START_FILE)
            self.log_start_offset = offset

    def reset(self, offset: int) -> None:
        """Drop all records and continue at `offset`: for a copy whose original starts beyond its end."""
        self._file.truncate(0)
        self._positions.clear()
        self.byte_size = 0
        self.trim(offset)
        self._first_offset = offset

    def close(self) -> None:
        self._file.close()

    def _write(self, encoded: bytes) -> None:
        written = os.write(self._file.fileno(), encoded)
        assert written == len(encoded), f"{written} of {len(encoded)} bytes written"
        self._positions.append(self.byte_size)
        self.byte_size += written

    def _recover(self) -> None:
        data = (self._directory / _RECORDS_FILE).read_bytes()
        while self.byte_size < len(data):
            try:
                record, end = LogRecord.decode(data, self.byte_size)
            except CorruptRecord:
                break
            if not self._positions:
                self._first_offset = record.offset
            self._positions.append(self.byte_size)
            self.byte_size = end
        self._file.truncate(self.byte_size)
