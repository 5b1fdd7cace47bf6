"""Decodes the records of Kafka's internal topic `__consumer_offsets` (layouts of Kafka 2.8 to 4.1).

Key and value each begin with a version, a big-endian int16. The version of the key is the kind of record:

    key 0, 1    a committed offset     value 0 to 4
    key 2       a consumer group       value 0 to 4
    key 3 to    other kinds of groups, which a source does not need

A key without a value is a tombstone: the offset or the group was removed.
"""

from functools import lru_cache
from struct import Struct, error
from typing import Final, NamedTuple


class Commit(NamedTuple):
    """A group's committed offset, which is the offset of the next record it will read."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int = -1
    topic_id: bytes | None = None


class CommitRemoved(NamedTuple):
    """A group's offset was removed: it expired or was deleted, or its group or topic was deleted."""

    group: str
    topic: str
    partition: int


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str


class GroupState(NamedTuple):
    """A consumer group of the classic protocol, written at each rebalance."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[GroupMember, ...]


class GroupRemoved(NamedTuple):
    """A consumer group was removed."""

    group: str


class OtherRecord(NamedTuple):
    """A record that a source does not need: another kind, or an unknown version."""

    key_version: int
    value_version: int


OffsetRecord = Commit | CommitRemoved | GroupState | GroupRemoved | OtherRecord
CommitName = tuple[str, str, int]
"""(group, topic, partition)."""

VALUE_VERSION_MAX: Final = 4
_FLEXIBLE: Final = 4
"""From this version on, lengths are encoded as varints plus one, and tagged fields follow."""
_TOPIC_ID_TAG: Final = 0

_INT8, _INT16, _INT32, _INT64 = Struct(">B"), Struct(">h"), Struct(">i"), Struct(">q")
_VERSION_AND_OFFSET: Final = Struct(">hq")


class MalformedRecord(ValueError):
    """The bytes do not match the layout of their version."""


def decode(key: bytes, value: bytes | None) -> OffsetRecord:
    """Decode a record. Raises MalformedRecord."""
    try:
        return _decode(key, value)
    except (error, UnicodeDecodeError) as bad:
        raise MalformedRecord(f"a record of __consumer_offsets cannot be read: {bad}") from bad


def decode_offset(key: bytes, value: bytes | None) -> tuple[CommitName, int | None] | None:
    """Decode only the name and offset of a commit. The offset is None for a tombstone; the result is None for other
    records.

    It costs a quarter of `decode`: the offset is at the same place in all versions, and decoded names are cached.
    Raises MalformedRecord.
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


@lru_cache(maxsize=200_000)
def _commit_name(key: bytes) -> CommitName | None:
    reader = _Reader(key)
    if reader.int16() not in {0, 1}:
        return None
    return reader.text(), reader.text(), reader.int32()


def _decode(key: bytes, value: bytes | None) -> OffsetRecord:
    keys = _Reader(key)
    key_version = keys.int16()
    if not 0 <= key_version <= 2:
        return OtherRecord(key_version, _INT16.unpack_from(value)[0] if value is not None else -1)
    group = keys.text()
    topic, partition = (keys.text(), keys.int32()) if key_version < 2 else ("", 0)
    if value is None:
        return CommitRemoved(group, topic, partition) if key_version < 2 else GroupRemoved(group)
    (value_version,) = _INT16.unpack_from(value)
    if not 0 <= value_version <= VALUE_VERSION_MAX:
        return OtherRecord(key_version, value_version)
    values = _Reader(value, is_flexible=value_version >= _FLEXIBLE)
    values.int16()
    if key_version == 2:
        return _decode_group(group, value_version, values)
    offset = values.int64()
    leader_epoch = values.int32() if value_version >= 3 else -1
    metadata = values.text()
    committed_ms = values.int64()
    expires_ms = values.int64() if value_version == 1 else -1
    topic_id = values.tags().get(_TOPIC_ID_TAG)
    return Commit(group, topic, partition, offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id)


def _decode_group(group: str, version: int, values: "_Reader") -> GroupState:
    protocol_type, generation = values.text(), values.int32()
    protocol, leader = values.nullable_text(), values.nullable_text()
    if version >= 2:
        values.int64()  # time of the last state change
    members = tuple(_decode_member(version, values) for _ in range(values.array_length()))
    return GroupState(group, protocol_type, generation, protocol, leader, members)


def _decode_member(version: int, values: "_Reader") -> GroupMember:
    member_id = values.text()
    instance_id = values.nullable_text() if version >= 3 else None
    member = GroupMember(member_id, instance_id, values.text(), values.text())
    if version >= 1:
        values.int32()  # rebalance timeout
    values.int32()  # session timeout
    values.blob()  # subscription
    values.blob()  # assignment
    values.tags()
    return member


class _Reader:
    """Reads fields one after the other."""

    def __init__(self, data: bytes, *, is_flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self._is_flexible = is_flexible

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def text(self) -> str:
        return self.nullable_text() or ""

    def nullable_text(self) -> str | None:
        length = self._varint() - 1 if self._is_flexible else self.int16()
        return None if length < 0 else self._take(length).decode()

    def blob(self) -> bytes:
        length = self._varint() - 1 if self._is_flexible else self.int32()
        return b"" if length < 0 else self._take(length)

    def array_length(self) -> int:
        return self._varint() - 1 if self._is_flexible else self.int32()

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields; empty for versions without them."""
        if not self._is_flexible:
            return {}
        return {self._varint(): self._take(self._varint()) for _ in range(self._varint())}

    def _number(self, layout: Struct) -> int:
        number: int
        (number,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return number

    def _varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._number(_INT8)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise error("a varint is longer than five bytes")

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) < length:
            raise error(f"{length} bytes wanted at {self._at}, {len(taken)} left")
        self._at += length
        return taken
