"""Decoding of `__consumer_offsets`: every version of keys and values, built from Kafka's message definitions."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_connectors.kafka.offset_records import MalformedRecord, decode_offset

NAME = ("billing", "orders", 3)


def text(value: str) -> bytes:
    return pack(">h", len(value.encode())) + value.encode()


def commit_key(version: int = 1, group: str = "billing") -> bytes:
    return pack(">h", version) + text(group) + text("orders") + pack(">i", 3)


def commit_value(version: int) -> bytes:
    """Offset 42. The fields that follow it differ between versions."""
    if version == 4:
        return pack(">hqi", version, 42, 7) + b"\5note" + pack(">q", 1000) + b"\1\0\x10" + bytes(range(16))
    epoch = pack(">i", 7) if version == 3 else b""
    expiry = pack(">q", 2000) if version == 1 else b""
    return pack(">hq", version, 42) + epoch + text("note") + pack(">q", 1000) + expiry


@pytest.mark.parametrize("key_version", [0, 1])
@pytest.mark.parametrize("version", range(5))
def test_a_commit_of_each_version(key_version: int, version: int) -> None:
    """The offset is read from each version; a key without a value is a tombstone."""
    assert decode_offset(commit_key(key_version), commit_value(version)) == (NAME, 42)
    assert decode_offset(commit_key(key_version), None) == (NAME, None)


@pytest.mark.parametrize("key_version", [2, 3, 4, 14, -1, 32_767])
def test_other_kinds_are_not_commits(key_version: int) -> None:
    """Keys of groups, also of kinds that brokers 4.0 and later write, are not decoded, with and without a value."""
    key = pack(">h", key_version) + text("billing")
    assert decode_offset(key, b"\0\0anything") is None
    assert decode_offset(key, None) is None


@pytest.mark.parametrize("version", [5, 9, -1])
def test_versions_that_are_not_known(version: int) -> None:
    """Not even the offset of an unknown version is read."""
    assert decode_offset(commit_key(), pack(">hq", version, 42) + b"\0" * 20) is None


def test_names_beyond_ascii() -> None:
    """Lengths count bytes, not characters."""
    assert decode_offset(commit_key(group="größe/日本"), commit_value(3)) == (("größe/日本", "orders", 3), 42)


@given(st.data())
def test_a_truncated_record_is_refused(data: st.DataObject) -> None:
    """A prefix of a key, or of a value that ends before its offset, raises MalformedRecord."""
    key, value = commit_key(), commit_value(data.draw(st.integers(0, 4)))
    with pytest.raises(MalformedRecord):
        decode_offset(key, value[: data.draw(st.integers(0, 9))])
    with pytest.raises(MalformedRecord):
        decode_offset(key[: data.draw(st.integers(0, len(key) - 1))], value)


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_any_bytes(key: bytes, value: bytes | None) -> None:
    """Random bytes are decoded or refused with MalformedRecord."""
    try:
        found = decode_offset(key, value)
    except MalformedRecord:
        return
    assert found is None or len(found[0]) == 3
