"""Decodes committed offsets in Kafka's internal topic `__consumer_offsets` (layouts of Kafka 2.8 to 4.1).

Key and value each begin with a version, a big-endian int16. The version of the key is the kind of record: 0 and 1 are a
committed offset, others are the state of a group. Keys consist of group, topic and partition. Values of all known
versions continue with the offset; the fields after it are not needed.

A key without a value is a tombstone: the offset was removed, because it expired, or because it, its group or its topic
was deleted.
"""

from functools import lru_cache
from struct import Struct, error
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"

Partition = tuple[str, int]
"""(topic, partition)."""
CommitName = tuple[str, str, int]
"""(group, topic, partition)."""

VALUE_VERSION_MAX: Final = 4
_VERSION, _PARTITION, _VERSION_AND_OFFSET = Struct(">h"), Struct(">i"), Struct(">hq")


class MalformedRecord(ValueError):
    """The bytes do not match the layout of their version."""


def decode_offset(key: bytes, value: bytes | None) -> tuple[CommitName, int | None] | None:
    """Decode the name and offset of a commit. The offset is None for a tombstone; the result is None for other records
    and unknown versions. Raises MalformedRecord.
    """
    try:
        name = _commit_name(key)
        if name is None:
            return None
        if value is None:
            return name, None
        version, offset = _VERSION_AND_OFFSET.unpack_from(value)
    except (error, UnicodeDecodeError) as bad:
        raise MalformedRecord(f"a record of __consumer_offsets cannot be read: {bad}") from bad
    return (name, offset) if 0 <= version <= VALUE_VERSION_MAX else None


@lru_cache(maxsize=200_000)  # most records repeat a name; decoding it takes most of the time
def _commit_name(key: bytes) -> CommitName | None:
    if _VERSION.unpack_from(key)[0] not in {0, 1}:
        return None
    group, at = _text(key, _VERSION.size)
    topic, at = _text(key, at)
    return group, topic, _PARTITION.unpack_from(key, at)[0]


def _text(data: bytes, at: int) -> tuple[str, int]:
    """The string at this place, and where the next field begins. Its length counts bytes; -1 is null."""
    at, length = at + _VERSION.size, max(_VERSION.unpack_from(data, at)[0], 0)
    text = data[at : at + length]
    if len(text) < length:
        raise error(f"{length} bytes wanted at {at}, {len(text)} left")
    return text.decode(), at + length
