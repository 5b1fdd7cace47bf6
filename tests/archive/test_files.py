"""Files of the archive: location, metadata, rolling, and behaviour when the disk fails."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from purgatory.engine.calls import CancelName
from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.files import BATCHES_WAITING_MAX, ArchiveWriter, TableFile, open_archive
from purgatory.extensions.archive.records import row_record
from purgatory.extensions.archive.rows import make_rows
from purgatory.extensions.archive.vocabulary import CallStamp, CannotArchive
from purgatory.testing import ManualClock
from tests.archive.archive_kit import FailingDisk

RUN = "run-a"
HALF_PAST_ONE_MS = 1_700_011_800_000  # 2023-11-15 01:30 UTC


def row(call_number: int, at_ms: int = HALF_PAST_ONE_MS) -> pa.RecordBatch:
    stamp = CallStamp(RUN, call_number, 0, at_ms)
    record = row_record(schema.CALLS, stamp, call=schema.CALL_NAMES[CancelName], topic=f"key-{call_number}", ended=0)
    return make_rows(schema.CALLS, [record])


def writer_to(folder: Path, clock: ManualClock | None = None, roll_bytes: int = 10**9) -> ArchiveWriter:
    now_ms = (clock or ManualClock()).now_ms
    return ArchiveWriter(
        *open_archive(str(folder)), RUN, roll_s=60, roll_bytes=roll_bytes, clock=lambda: now_ms() / 1_000
    )


def is_due(writer: ArchiveWriter) -> bool:
    return writer.is_due


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def call_numbers(folder: Path) -> list[int]:
    tables = [pq.ParquetFile(path).read() for path in sorted((folder / schema.CALLS).rglob("*.parquet"))]
    return [number for table in tables for number in table["call_number"].to_pylist()]


@pytest.mark.parametrize("place", ["nonsense://x", "file://relative"])
def test_a_place_that_is_of_no_use_is_named_with_the_reason(place: str) -> None:
    with pytest.raises(CannotArchive, match=f"^cannot write an archive to {place}: .+$"):
        open_archive(place)


def test_a_file_lies_by_date_and_hour_and_says_what_it_is(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    writer.write(schema.CALLS, row(1))
    writer.write(schema.CALLS, row(2))
    path = f"calls/date=2023-11-15/hour=01/{RUN}-000001.parquet"
    writer.roll()
    assert files_in(tmp_path) == [path]
    file = pq.ParquetFile(tmp_path / path)
    wanted = schema.SCHEMAS[schema.CALLS]
    assert [(field.name, field.type) for field in file.schema_arrow] == [(field.name, field.type) for field in wanted]
    metadata = file.schema_arrow.metadata
    assert metadata[layout.VERSION_KEY] == str(schema.VERSION).encode()
    assert metadata[layout.TABLE_KEY] == b"calls"
    assert metadata[layout.RUN_KEY] == RUN.encode()
    assert metadata[layout.FILE_NUMBER_KEY] == b"1"
    kept = writer.statistics
    assert (kept.files, kept.bytes, kept.rows_kept[schema.CALLS]) == (1, (tmp_path / path).stat().st_size, 2)


def test_it_rolls_when_the_oldest_file_is_old_enough(tmp_path: Path) -> None:
    clock = ManualClock()
    writer = writer_to(tmp_path, clock)
    clock.jump(100_000)
    writer.write(schema.CALLS, row(1))
    clock.jump(59_900)
    writer.write(schema.CALLS, row(2))
    assert not is_due(writer)
    clock.jump(100)
    assert is_due(writer)
    writer.roll()
    assert writer.statistics.rows_kept[schema.CALLS] == 2
    assert not is_due(writer)


def test_many_small_batches_are_joined(tmp_path: Path) -> None:
    file = TableFile(schema.CALLS, RUN, 1, 0)
    for number in range(3 * BATCHES_WAITING_MAX):
        file.write(row(number))
        assert len(file._waiting) < BATCHES_WAITING_MAX
    file.finish()
    assert pq.read_table(pa.BufferReader(file.content))["call_number"].to_pylist() == list(
        range(3 * BATCHES_WAITING_MAX)
    )


def test_it_rolls_when_a_file_is_large_enough(tmp_path: Path) -> None:
    writer = writer_to(tmp_path, roll_bytes=1_000)
    writer.write(schema.CALLS, row(1).take(pa.array([0] * 140_000)))
    assert is_due(writer)
    writer.roll()
    assert writer.statistics.rows_kept[schema.CALLS] == 140_000


def test_no_file_spans_two_hours(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    hours = [0, 0, 1, 1, 0]
    rows = [row(number, HALF_PAST_ONE_MS + hour * 3_600_000) for number, hour in enumerate(hours)]
    writer.write(schema.CALLS, pa.Table.from_batches(rows).combine_chunks().to_batches()[0])
    assert is_due(writer)
    writer.roll()
    assert [name.split("/")[2:] for name in files_in(tmp_path)] == [
        ["hour=01", f"{RUN}-000001.parquet"],
        ["hour=01", f"{RUN}-000003.parquet"],
        ["hour=02", f"{RUN}-000002.parquet"],
    ]


@pytest.mark.parametrize("fault", ["write", "move"])
def test_what_a_broken_disk_refuses_is_kept_and_tried_again(tmp_path: Path, fault: str) -> None:
    disk = FailingDisk()
    writer = ArchiveWriter(disk.filesystem(), str(tmp_path), RUN)
    writer.write(schema.CALLS, row(1))
    disk.fails = {fault}
    for number in (2, 3):
        with pytest.raises(OSError, match="No space left"):
            writer.roll()
        assert call_numbers(tmp_path) == []
        writer.write(schema.CALLS, row(number))
    assert writer.statistics.rows_kept[schema.CALLS] == 0
    assert is_due(writer)
    disk.fails = set()
    writer.roll()
    assert call_numbers(tmp_path) == [1, 2, 3]
    assert not is_due(writer)
    assert [path for path in files_in(tmp_path) if not path.startswith("calls/")] == []


def test_a_file_that_is_half_written_is_taken_away(tmp_path: Path) -> None:
    """It uses space that the disk may lack. If it cannot be deleted either, this is not reported as another error."""
    disk = FailingDisk()
    writer = ArchiveWriter(disk.filesystem(), str(tmp_path), RUN)
    writer.write(schema.CALLS, row(1))
    disk.fails = {"write", "delete"}
    with pytest.raises(OSError, match="No space left"):
        writer.roll()
    disk.fails = set()
    writer.roll()
    assert writer.statistics.rows_kept[schema.CALLS] == 1


@pytest.mark.parametrize("place", ["kept/here", "file://{folder}/kept/here", "{folder}/kept/here"])
def test_a_path_or_a_uri_is_a_place(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filesystem, root = open_archive(place.format(folder=tmp_path))
    assert isinstance(filesystem, fs.LocalFileSystem)
    assert Path(root) == tmp_path / "kept" / "here"
    assert (tmp_path / "kept" / "here" / layout.WRITING).is_dir()
    assert files_in(tmp_path) == []
