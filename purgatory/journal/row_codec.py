"""Rows of the journal: their checksums, and the content of results as bytes and back.

A checksum is the CRC-32 of all that a row says, taken over its values in the order of the table, with lengths in
between, so no value can move from one column to the next unseen.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.saved import completions_from, completions_to
from purgatory.journal.group import Refused
from purgatory.journal.sql_schema import PLACED

Value = int | str | bytes

ENDED: Final = 0
REFUSED: Final = 1
CHANGE: Final = struct.Struct("<IqI")
"""Before each partition of a row of changes: lengths of its topic and its content, and its number between them."""
PART: Final = struct.Struct("<BI")
"""Before each part of the content of a row of results: what it is, and its length."""


def checksum(*values: Value) -> int:
    """The checksum of a row with these values."""
    crc = 0
    for value in values:
        if isinstance(value, int):
            octets = b"i" + value.to_bytes(9, "little", signed=True)
        elif isinstance(value, str):
            text = value.encode()
            octets = b"t" + len(text).to_bytes(4, "little") + text
        else:
            crc = zlib.crc32(b"b" + len(value).to_bytes(4, "little"), crc)
            octets = value
        crc = zlib.crc32(octets, crc)
    return crc


def is_sound(table: str, row: tuple[Any, ...]) -> bool:
    """Whether a row of a table, read with all its columns, is what was written."""
    values = row[1:-1] if table in PLACED else row[:-1]
    try:
        return bool(checksum(*values) == row[-1])
    except (TypeError, AttributeError, OverflowError, ValueError):
        return False


def changes_to(changes: list[tuple[PartitionName, bytes]]) -> bytes:
    """The content of a row of changes: partitions, those that are gone without content."""
    packed: list[bytes] = []
    for (topic, number), content in changes:
        name = topic.encode()
        packed += CHANGE.pack(len(name), number, len(content)), name, content
    return b"".join(packed)


def changes_from(content: bytes) -> list[tuple[PartitionName, bytes]]:
    """The partitions of a row of changes."""
    changes: list[tuple[PartitionName, bytes]] = []
    place = 0
    while place < len(content):
        name_length, number, length = CHANGE.unpack_from(content, place)
        place += CHANGE.size
        name = content[place : place + name_length].decode()
        place += name_length
        changes.append(((name, number), content[place : place + length]))
        place += length
    return changes


def results_to(parts: list[Completions | Refused]) -> tuple[bytes, int]:
    """The content of a row of results, and how many there are."""
    packed: list[bytes] = []
    count = 0
    for part in parts:
        what, content = (
            (REFUSED, json.dumps(part).encode()) if isinstance(part, list) else (ENDED, completions_to(part))
        )
        packed += PART.pack(what, len(content)), content
        count += len(part)
    return b"".join(packed), count


def results_from(content: bytes, owner_id: int) -> list[Completions | Refused]:
    """The results of a row, as those of this owner."""
    parts: list[Completions | Refused] = []
    place = 0
    while place < len(content):
        what, length = PART.unpack_from(content, place)
        place += PART.size
        octets = content[place : place + length]
        if what == REFUSED:
            parts.append([(code, field, said, number, kind) for code, field, said, number, kind in json.loads(octets)])
        else:
            parts.append(completions_from(octets, owner_id))
        place += length
    return parts
