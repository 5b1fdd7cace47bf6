"""Committed offsets without brokers: every version of records of `__consumer_offsets`, built from Kafka's message
definitions, and polls of a server that stops answering.
"""

import asyncio
from contextlib import suppress
from struct import pack, unpack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka.group_poller import GroupPoller
from purgatory_connectors.kafka.offset_records import MalformedRecord, decode_offset

from tests.kit.eventually import eventually

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
def test_offset_and_tombstone_of_each_version_are_read(key_version: int, version: int) -> None:
    assert decode_offset(commit_key(key_version), commit_value(version)) == (NAME, 42)
    assert decode_offset(commit_key(key_version), None) == (NAME, None)


@pytest.mark.parametrize("key_version", [2, 3, 4, 14, -1, 32_767])
@pytest.mark.parametrize("value", [b"\0\0anything", None])
def test_records_of_other_kinds_are_not_decoded(key_version: int, value: bytes | None) -> None:
    """Also of kinds that brokers 4.0 and later write."""
    assert decode_offset(pack(">h", key_version) + text("billing"), value) is None


@pytest.mark.parametrize("version", [5, 9, -1])
def test_value_of_an_unknown_version_is_not_read(version: int) -> None:
    assert decode_offset(commit_key(), pack(">hq", version, 42) + b"\0" * 20) is None


def test_lengths_of_names_count_bytes_not_characters() -> None:
    assert decode_offset(commit_key(group="größe/日本"), commit_value(3)) == (("größe/日本", "orders", 3), 42)


@given(st.data())
def test_prefix_of_a_record_raises_malformed_record(data: st.DataObject) -> None:
    key, value = commit_key(), commit_value(data.draw(st.integers(0, 4)))
    with pytest.raises(MalformedRecord):
        decode_offset(key, value[: data.draw(st.integers(0, 9))])
    with pytest.raises(MalformedRecord):
        decode_offset(key[: data.draw(st.integers(0, len(key) - 1))], value)


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_random_bytes_are_decoded_or_refused_as_malformed(key: bytes, value: bytes | None) -> None:
    try:
        found = decode_offset(key, value)
    except MalformedRecord:
        return
    assert found is None or len(found[0]) == 3


METADATA, API_VERSIONS = 3, 18


class SilentBroker:
    """Answers only the request for supported versions. Counts connections that the client has not closed."""

    def __init__(self) -> None:
        self.fell_silent = asyncio.Event()
        self.open_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        self.open_count += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = unpack(">i", await reader.readexactly(4))
                api_key, _, correlation_id = unpack_from(">hhi", await reader.readexactly(size))
                if api_key == API_VERSIONS:
                    known = pack(">ihi6h", correlation_id, 0, 2, METADATA, 0, 1, API_VERSIONS, 0, 0)
                    writer.write(pack(">i", len(known)) + known)
                else:
                    self.fell_silent.set()
        writer.close()
        self.open_count -= 1


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_no_connection_stays_open(is_cancelled: bool) -> None:
    """After `close`, even if a caller was cancelled while one was being opened."""
    silent = SilentBroker()
    server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    poller = GroupPoller({"bootstrap_servers": f"127.0.0.1:{port}", "request_timeout_ms": 300})
    asking = asyncio.create_task(poller.offsets("billing"))
    await silent.fell_silent.wait()
    if is_cancelled:
        asking.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else SourceStale):
        await asking
    await poller.close()
    await eventually(lambda: silent.open_count == 0)
    server.close()
    await server.wait_closed()
