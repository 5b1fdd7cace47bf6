"""The example's log file: what is written is found again, also by the next process, whatever a crash left behind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.replicated_log.log_file import (
    CorruptRecord,
    LogFile,
    LogRecord,
    OffsetOutOfRange,
    decode_all,
    records_on_disk,
)
from examples.replicated_log.producer import split_lines

Opener = Callable[[str], LogFile]
PAYLOADS = [bytes([number]) * number for number in range(60)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    logs: list[LogFile] = []

    def open_log(name: str) -> LogFile:
        logs.append(LogFile(tmp_path / name))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


@pytest.fixture
def log(opened: Opener) -> LogFile:
    """A log of 60 records."""
    log = opened("log")
    for payload in PAYLOADS:
        log.append(payload)
    return log


def payloads(directory: Path) -> list[bytes]:
    return [record.payload for record in records_on_disk(directory)]


@pytest.mark.parametrize("data", [b"a\nb\n", b"a\nb", b"\n\n", b"a\r\n\xff"])
def test_lines_join_to_the_file(data: bytes) -> None:
    """Splitting loses nothing: the lines, joined by newlines, are the file again."""
    assert b"\n".join(split_lines(data)) + (b"\n" if data.endswith(b"\n") else b"") == data


def test_harmed_record_is_refused() -> None:
    """Any flipped bit of a record is noticed."""
    encoded = LogRecord(7, b"payload").encode()
    for place in range(len(encoded)):
        harmed = bytearray(encoded)
        harmed[place] ^= 1
        with pytest.raises(CorruptRecord):
            list(decode_all(bytes(harmed)))


def test_read_gives_every_record_once(log: LogFile) -> None:
    """Reading on, whatever the byte limit, gives each record once, and none at or above the bound."""
    for bytes_max in (1, 100, 10_000):
        offset, read = 0, []
        while records := list(decode_all(log.read(offset, 50, bytes_max))):
            read += records
            offset = records[-1].offset + 1
        assert read == [LogRecord(offset, payload) for offset, payload in enumerate(PAYLOADS[:50])]


def test_read_outside_the_log_is_refused(log: LogFile) -> None:
    """An offset below the start or above the end is an error, the end itself is just empty."""
    log.trim(20)
    assert log.read(60, 60, 100) == b""
    for offset in (19, 61):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 60, 100)


def test_opened_again_holds_the_same(log: LogFile, tmp_path: Path, opened: Opener) -> None:
    """The next process finds all records, the log start included, and goes on at the same offset."""
    log.trim(33)
    log.close()
    again = opened("log")
    assert (again.log_start_offset, again.log_end_offset) == (33, 60)
    assert again.append(b"next") == 60
    assert payloads(tmp_path / "log") == [*PAYLOADS[33:], b"next"]


@pytest.mark.parametrize("cut", [1, 15, 30])
def test_half_written_end_is_cut(log: LogFile, tmp_path: Path, opened: Opener, cut: int) -> None:
    """A record that a crash left half-written is gone after opening; those before it stay."""
    log.close()
    file = tmp_path / "log" / "records.log"
    file.write_bytes(file.read_bytes()[:-cut])
    again = opened("log")
    assert again.log_end_offset == 59
    assert payloads(tmp_path / "log") == PAYLOADS[:59]


def test_copy_must_follow_on(log: LogFile, tmp_path: Path, opened: Opener) -> None:
    """A copy takes what follows its end, byte for byte, and refuses a gap."""
    copy = opened("copy")
    while records := log.read(copy.log_end_offset, 60, 500):
        copy.append_copy(records)
    assert payloads(tmp_path / "copy") == PAYLOADS
    with pytest.raises(OffsetOutOfRange):
        copy.append_copy(LogRecord(61, b"").encode())


def test_reset_goes_on_elsewhere(log: LogFile, tmp_path: Path, opened: Opener) -> None:
    """A copy that lags behind its original's start forgets everything and goes on there, also when opened again."""
    log.reset(500)
    log.close()
    again = opened("log")
    assert (again.log_start_offset, again.log_end_offset) == (500, 500)
    assert again.append(b"x") == 500
    assert records_on_disk(tmp_path / "log") == [LogRecord(500, b"x")]
