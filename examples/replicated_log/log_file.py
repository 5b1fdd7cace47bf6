"""A log of records with consecutive offsets, stored in one file and kept in memory for reading.

    length of payload (u32) | CRC-32 of offset and payload (u32) | offset (u64) | payload

A record that a crash left incomplete is cut off when the file is opened. Nothing is fsynced: a killed process loses
nothing, a power failure may.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

HEADER: Final = struct.Struct(">IIQ")


class CorruptRecord(Exception):
    """The bytes are not a complete record with a matching checksum."""


class OffsetOutOfRange(Exception):
    """The offset is outside the log, or a copied record does not continue it."""


class LogRecord(NamedTuple):
    """One record: its offset and the bytes that were sent."""

    offset: int
    payload: bytes

    def encode(self) -> bytes:
        return HEADER.pack(len(self.payload), self._checksum(), self.offset) + self.payload

    def _checksum(self) -> int:
        return zlib.crc32(self.payload, zlib.crc32(self.offset.to_bytes(8, "big")))

    @classmethod
    def decode(cls, data: bytes, position: int) -> tuple["LogRecord", int]:
        """Return the record at `position` and the position after it. Raises CorruptRecord."""
        start = position + HEADER.size
        if start > len(data):
            raise CorruptRecord(f"position {position}: only {len(data) - position} bytes, a header has {HEADER.size}")
        length, checksum, offset = HEADER.unpack_from(data, position)
        record = cls(offset, bytes(data[start : start + length]))
        if len(record.payload) != length or record._checksum() != checksum:
            raise CorruptRecord(f"position {position}: record {offset} is incomplete, or its checksum does not match")
        return record, start + length


def decode_all(data: bytes) -> Iterator[LogRecord]:
    """Yield every record in `data`. Raises CorruptRecord."""
    position = 0
    while position < len(data):
        record, position = LogRecord.decode(data, position)
        yield record


class LogFile:
    """The records from `log_start_offset` up to `log_end_offset` (exclusive). One process owns a file."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._records: list[bytes] = []
        self.log_start_offset = 0
        data = path.read_bytes() if path.exists() else b""
        size = 0
        while size < len(data):
            try:
                record, end = LogRecord.decode(data, size)
            except CorruptRecord:
                break
            if not self._records:
                self.log_start_offset = record.offset
            self._records.append(data[size:end])
            size = end
        self.byte_position = size
        """Bytes appended so far. Trimming does not lower it: the daemon computes fetch sizes from differences."""
        self._file = path.open("ab", buffering=0)
        os.truncate(path, size)

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self._records)

    def append(self, payload: bytes) -> int:
        """Append a record; returns its offset."""
        offset = self.log_end_offset
        self._write(LogRecord(offset, payload).encode())
        return offset

    def append_copy(self, encoded: bytes) -> None:
        """Append records of another log. Raises OffsetOutOfRange if they do not continue this one."""
        for record in decode_all(encoded):
            if record.offset != self.log_end_offset:
                raise OffsetOutOfRange(f"record {record.offset} cannot follow record {self.log_end_offset - 1}")
            self._write(record.encode())

    def read(self, offset: int, end_offset: int, bytes_max: int) -> bytes:
        """Return encoded records from `offset`, all below `end_offset`.

        At most `bytes_max` bytes, except that one record is always returned if there is one.
        Raises OffsetOutOfRange if `offset` is outside the log.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}")
        found = bytearray()
        for record in self._records[offset - self.log_start_offset : max(0, end_offset - self.log_start_offset)]:
            if found and len(found) + len(record) > bytes_max:
                break
            found += record
        return bytes(found)

    def trim(self, offset: int) -> None:
        """Delete the records below `offset`. At least one record must remain, because the file's first record is what
        tells the log start after a restart.
        """
        if offset <= self.log_start_offset:
            return
        assert offset < self.log_end_offset, (
            f"trim to {offset} would empty the log, which ends at {self.log_end_offset}"
        )
        del self._records[: offset - self.log_start_offset]
        self.log_start_offset = offset
        self._file.close()
        new = self._path.with_suffix(".new")
        new.write_bytes(b"".join(self._records))
        new.replace(self._path)  # atomic: a crash leaves either the old file or the new one
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def _write(self, encoded: bytes) -> None:
        written = self._file.write(encoded)
        assert written == len(encoded), f"{written} of {len(encoded)} bytes written"
        self._records.append(encoded)
        self.byte_position += len(encoded)
