"""The log file of the replicated-log example."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.replicated_log.clients import split_lines
from examples.replicated_log.log_file import CorruptRecord, LogFile, LogRecord, OffsetOutOfRange, decode_all

PAYLOADS = [bytes([number]) * (number % 7) for number in range(60)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], LogFile]]:
    """Open logs by name; they are closed after the test."""
    logs: list[LogFile] = []

    def open_log(name: str) -> LogFile:
        logs.append(LogFile(tmp_path / name))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


@pytest.fixture
def log(opened: Callable[[str], LogFile]) -> LogFile:
    """A log of 60 records."""
    log = opened("log")
    for payload in PAYLOADS:
        log.append(payload)
    return log


def payloads(path: Path) -> list[bytes]:
    return [record.payload for record in decode_all(path.read_bytes())]


@pytest.mark.parametrize("data", [b"a\nb\n", b"a\nb", b"\n\n", b"a\r\n\xff"])
def test_lines_join_to_the_file(data: bytes) -> None:
    assert b"\n".join(split_lines(data)) + (b"\n" if data.endswith(b"\n") else b"") == data


def test_any_flipped_bit_is_detected() -> None:
    encoded = LogRecord(7, b"payload").encode()
    for place in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[place] ^= 1
        with pytest.raises(CorruptRecord):
            list(decode_all(bytes(damaged)))


@pytest.mark.parametrize("bytes_max", [1, 100, 10_000])
def test_successive_reads_return_each_record_once(log: LogFile, bytes_max: int) -> None:
    offset, read = 0, list[LogRecord]()
    while records := list(decode_all(log.read(offset, 50, bytes_max))):
        read += records
        offset = records[-1].offset + 1
    assert read == [LogRecord(offset, payload) for offset, payload in enumerate(PAYLOADS[:50])]


def test_a_trimmed_log_continues_after_reopening(
    log: LogFile, opened: Callable[[str], LogFile], tmp_path: Path
) -> None:
    log.trim(33)
    again = opened("log")
    assert (again.log_start_offset, again.log_end_offset) == (33, 60)
    assert again.read(60, 60, 100) == b""
    for offset in (32, 61):
        with pytest.raises(OffsetOutOfRange):
            again.read(offset, 60, 100)
    assert again.append(b"next") == 60
    assert payloads(tmp_path / "log") == [*PAYLOADS[33:], b"next"]


@pytest.mark.parametrize("cut", [1, 15, 16])
def test_an_incomplete_last_record_is_cut_off(
    log: LogFile, opened: Callable[[str], LogFile], tmp_path: Path, cut: int
) -> None:
    assert log.log_end_offset == 60
    (tmp_path / "log").write_bytes((tmp_path / "log").read_bytes()[:-cut])
    assert opened("log").log_end_offset == 59
    assert payloads(tmp_path / "log") == PAYLOADS[:59]


def test_a_copy_must_continue_the_log(log: LogFile, opened: Callable[[str], LogFile], tmp_path: Path) -> None:
    copy = opened("copy")
    while records := log.read(copy.log_end_offset, 60, 100):
        copy.append_copy(records)
    assert payloads(tmp_path / "copy") == PAYLOADS
    with pytest.raises(OffsetOutOfRange):
        copy.append_copy(LogRecord(61, b"").encode())
