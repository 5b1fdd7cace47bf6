"""Decoding of `__consumer_offsets`: every version of keys and values, built from Kafka's message definitions."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_connectors.kafka.offset_records import (
    Commit,
    CommitRemoved,
    GroupMember,
    GroupRemoved,
    GroupState,
    MalformedRecord,
    OtherRecord,
    decode,
    decode_offset,
)

TOPIC_ID = bytes(range(16))


def text(value: str | None) -> bytes:
    """A string of versions 0 to 3."""
    return pack(">h", -1) if value is None else pack(">h", len(value.encode())) + value.encode()


def compact(value: str | None) -> bytes:
    """A string of version 4, shorter than 127 bytes."""
    return b"\0" if value is None else bytes([len(value.encode()) + 1]) + value.encode()


def commit_key(version: int = 1, group: str = "billing", topic: str = "orders", partition: int = 3) -> bytes:
    return pack(">h", version) + text(group) + text(topic) + pack(">i", partition)


def group_key(group: str = "billing") -> bytes:
    return pack(">h", 2) + text(group)


def commit_value(version: int, offset: int = 42, *, topic_id: bytes | None = None) -> bytes:
    head = pack(">hq", version, offset)
    if version == 4:
        tags = b"\0" if topic_id is None else b"\1\0\x10" + topic_id
        return head + pack(">i", 7) + compact("note") + pack(">q", 1000) + tags
    epoch = pack(">i", 7) if version == 3 else b""
    expiry = pack(">q", 2000) if version == 1 else b""
    return head + epoch + text("note") + pack(">q", 1000) + expiry


def group_value(version: int) -> bytes:
    string = compact if version == 4 else text
    blob = b"\3ab" if version == 4 else pack(">i", 2) + b"ab"
    member = string("m-1") + (string("static") if version >= 3 else b"") + string("client") + string("/127.0.0.1")
    member += (pack(">i", 60_000) if version >= 1 else b"") + pack(">i", 10_000) + blob + blob
    member += b"\0" if version == 4 else b""
    head = pack(">h", version) + string("consumer") + pack(">i", 5) + string("range") + string("m-1")
    head += pack(">q", 1234) if version >= 2 else b""
    return head + (b"\2" if version == 4 else pack(">i", 1)) + member + (b"\0" if version == 4 else b"")


@pytest.mark.parametrize("key_version", [0, 1])
@pytest.mark.parametrize("version", range(5))
def test_a_commit_of_each_version(key_version: int, version: int) -> None:
    """All fields of a version are read; missing ones are -1."""
    epoch, expires = (7 if version >= 3 else -1), (2000 if version == 1 else -1)
    expected = Commit("billing", "orders", 3, 42, epoch, "note", 1000, expires)
    assert decode(commit_key(key_version), commit_value(version)) == expected
    assert decode_offset(commit_key(key_version), commit_value(version)) == (("billing", "orders", 3), 42)


def test_a_topic_id_is_read_from_the_tags() -> None:
    """The topic id is tag 0 in version 4, before or after unknown tags."""
    assert decode(commit_key(), commit_value(4, topic_id=TOPIC_ID)) == Commit(
        "billing", "orders", 3, 42, 7, "note", 1000, -1, TOPIC_ID
    )
    unknown = commit_value(4)[:-1] + b"\2\0\x10" + TOPIC_ID + b"\5\1x"
    decoded = decode(commit_key(), unknown)
    assert isinstance(decoded, Commit)
    assert decoded.topic_id == TOPIC_ID


@pytest.mark.parametrize("version", range(5))
def test_a_group_of_each_version(version: int) -> None:
    """Groups are decoded with their members, and never as commits."""
    members = (GroupMember("m-1", "static" if version >= 3 else None, "client", "/127.0.0.1"),)
    assert decode(group_key(), group_value(version)) == GroupState("billing", "consumer", 5, "range", "m-1", members)
    assert decode_offset(group_key(), group_value(version)) is None


def test_an_empty_group_has_no_protocol_nor_leader() -> None:
    """A group without members is written with nulls and an empty list."""
    value = pack(">h", 3) + text("consumer") + pack(">i", 6) + text(None) + text(None) + pack(">qi", 1234, 0)
    assert decode(group_key(), value) == GroupState("billing", "consumer", 6, None, None, ())


def test_tombstones() -> None:
    """A key without a value means that an offset or a group was removed."""
    assert decode(commit_key(0), None) == decode(commit_key(1), None) == CommitRemoved("billing", "orders", 3)
    assert decode_offset(commit_key(), None) == (("billing", "orders", 3), None)
    assert decode(group_key(), None) == GroupRemoved("billing")
    assert decode_offset(group_key(), None) is None


@pytest.mark.parametrize("key_version", [3, 4, 14, -1, 32_767])
def test_other_kinds_are_told_apart(key_version: int) -> None:
    """Keys of other group kinds, as written by brokers 4.0 and later, are recognised with and without a value."""
    key = pack(">h", key_version) + text("billing")
    assert decode(key, pack(">h", 0) + b"anything") == OtherRecord(key_version, 0)
    assert decode(key, None) == OtherRecord(key_version, -1)
    assert decode_offset(key, b"\0\0anything") is None


@pytest.mark.parametrize("version", [5, 9, -1])
def test_versions_that_are_not_known(version: int) -> None:
    """Records of unknown versions are not decoded, not even the offset."""
    value = pack(">hq", version, 42) + b"\0" * 20
    assert decode(commit_key(), value) == OtherRecord(1, version)
    assert decode(group_key(), value) == OtherRecord(2, version)
    assert decode_offset(commit_key(), value) is None


def test_names_beyond_ascii() -> None:
    """Lengths count bytes, not characters."""
    assert decode_offset(commit_key(group="größe/日本"), commit_value(3)) == (("größe/日本", "orders", 3), 42)


@given(st.data())
def test_what_is_cut_short_is_refused(data: st.DataObject) -> None:
    """A prefix of a record is never decoded as a record, and the only error is MalformedRecord."""
    version = data.draw(st.integers(0, 4))
    value = data.draw(st.sampled_from([commit_value(version, topic_id=TOPIC_ID), group_value(version)]))
    key = commit_key() if value.startswith(pack(">hq", version, 42)) else group_key()
    # The tags at the end of a group are not read, so cutting them off is not detected.
    cut = data.draw(st.integers(0, len(value) - 2))
    with pytest.raises(MalformedRecord):
        decode(key, value[:cut])
    with pytest.raises(MalformedRecord):
        decode(key[: data.draw(st.integers(0, len(key) - 1))], value)


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_any_bytes(key: bytes, value: bytes | None) -> None:
    """Random bytes are decoded or refused with MalformedRecord, and both decoders agree on the offset."""
    try:
        record = decode(key, value)
    except MalformedRecord:
        return
    if isinstance(record, Commit):
        assert decode_offset(key, value) == ((record.group, record.topic, record.partition), record.offset)
