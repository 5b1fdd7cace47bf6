"""Checksums of the journal's rows, and the packed contents of changes and results.

A checksum is the CRC-32 of a row's values in the order of the columns. It includes types and lengths, so it also
detects a value that has moved to another column.
"""

import json
import struct
import zlib
from typing import Any, Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.saved_completions import completions_from, completions_to
from purgatory.journal.group import RefusedRows
from purgatory.journal.sql_schema import SURROGATE_KEYED

Value = int | str | bytes

ENDED: Final = 0
REFUSED: Final = 1
CHANGE_HEADER: Final = struct.Struct("<IqI")
"""Before each partition of a row of changes: length of the topic, partition number, length of the content."""
RESULTS_HEADER: Final = struct.Struct("<BI")
"""Before each part of a row of results: ENDED or REFUSED, and its length."""


def checksum(*values: Value) -> int:
    crc = 0
    for value in values:
        if isinstance(value, int):
            # Nine bytes hold any 64-bit number, signed or unsigned.
            octets = b"i" + value.to_bytes(9, "little", signed=True)
        elif isinstance(value, str):
            text = value.encode()
            octets = b"t" + len(text).to_bytes(4, "little") + text
        else:
            # In two steps: joining header and content would copy the content of every row.
            crc = zlib.crc32(b"b" + len(value).to_bytes(4, "little"), crc)
            octets = value
        crc = zlib.crc32(octets, crc)
    return crc


def is_intact(table: str, row: tuple[Any, ...]) -> bool:
    """Whether the checksum of a row, read with all its columns, is correct."""
    # A damaged row may hold values of any type, so the checksum itself may raise.
    values = row[1:-1] if table in SURROGATE_KEYED else row[:-1]
    try:
        return bool(checksum(*values) == row[-1])
    except (TypeError, AttributeError, OverflowError, ValueError):
        return False


def pack_changes(changes: list[tuple[PartitionName, bytes]]) -> bytes:
    """The content of a row of `changes`: partitions and their contents; empty: removed."""
    packed: list[bytes] = []
    for (topic, number), content in changes:
        name = topic.encode()
        packed += CHANGE_HEADER.pack(len(name), number, len(content)), name, content
    return b"".join(packed)


def unpack_changes(content: bytes) -> list[tuple[PartitionName, bytes]]:
    changes: list[tuple[PartitionName, bytes]] = []
    place = 0
    while place < len(content):
        name_length, number, length = CHANGE_HEADER.unpack_from(content, place)
        place += CHANGE_HEADER.size
        name = content[place : place + name_length].decode()
        place += name_length
        changes.append(((name, number), content[place : place + length]))
        place += length
    return changes


def pack_results(parts: list[Completions | RefusedRows]) -> tuple[bytes, int]:
    """The content of a row of `results`, and the number of results."""
    packed: list[bytes] = []
    count = 0
    for part in parts:
        if isinstance(part, list):
            form, content = REFUSED, json.dumps(part).encode()
        else:
            form, content = ENDED, completions_to(part)
        packed += RESULTS_HEADER.pack(form, len(content)), content
        count += len(part)
    return b"".join(packed), count


def unpack_results(content: bytes, owner_id: int) -> list[Completions | RefusedRows]:
    """The results of a row, for the given engine owner."""
    parts: list[Completions | RefusedRows] = []
    place = 0
    while place < len(content):
        form, length = RESULTS_HEADER.unpack_from(content, place)
        place += RESULTS_HEADER.size
        octets = content[place : place + length]
        if form == REFUSED:
            parts.append([(code, field, text, number, kind) for code, field, text, number, kind in json.loads(octets)])
        else:
            parts.append(completions_from(octets, owner_id))
        place += length
    return parts
