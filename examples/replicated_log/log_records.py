"""A record as bytes: the same in the segment files and between the processes, so that no process re-encodes it.

length of payload (u32) | CRC-32 of offset and payload (u32) | offset (u64) | payload
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

HEADER: Final = struct.Struct(">IIQ")
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024


class CorruptRecord(Exception):
    """The bytes at this position are not a whole, unharmed record."""


class LogRecord(NamedTuple):
    """One record: its place in the log and the bytes that were sent."""

    offset: int
    payload: bytes


def encode(record: LogRecord) -> bytes:
    return HEADER.pack(len(record.payload), _checksum(record.offset, record.payload), record.offset) + record.payload


def decode(data: bytes, position: int = 0) -> tuple[LogRecord, int]:
    """The record at `position`, and the position after it. CorruptRecord: cut short or harmed."""
    start = position + HEADER.size
    if start > len(data):
        raise CorruptRecord(f"{len(data) - position} bytes at position {position}: too short for a record header")
    length, checksum, offset = HEADER.unpack_from(data, position)
    end = start + length
    if end > len(data):
        raise CorruptRecord(f"record at position {position} says {length} bytes, {len(data) - start} are there")
    payload = bytes(data[start:end])
    if _checksum(offset, payload) != checksum:
        raise CorruptRecord(f"record at position {position} (offset {offset}): the checksum does not match")
    return LogRecord(offset, payload), end


def decode_all(data: bytes) -> Iterator[LogRecord]:
    """Every record of `data`, which must hold whole records only."""
    position = 0
    while position < len(data):
        record, position = decode(data, position)
        yield record


def _checksum(offset: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(offset.to_bytes(8, "big")))
