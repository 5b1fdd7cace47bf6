"""Files of an archive by their footers: which are used, which are set aside and why, and unusable archives."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline import location
from purgatory_pipeline.archive import footer
from purgatory_pipeline.archive.catalog import ArchiveCatalog, find_archive
from purgatory_pipeline.errors import ArchiveUnusable

from purgatory.extensions.archive import layout, schema
from tests.pipeline.archive.histories import (
    START,
    History,
    metadata_of,
    small_history,
    table_of,
    write_file,
    write_table,
)


def reasons(archive: ArchiveCatalog) -> dict[str, str]:
    return {Path(file.path).name: file.reason for file in archive.set_aside}


@pytest.fixture
def written(tmp_path: Path) -> list[Path]:
    """The files of a small intact archive in the test's folder: five tables, no calls."""
    return small_history().write(tmp_path)


def one_of(paths: list[Path], table: str) -> Path:
    return next(path for path in paths if table in path.parts)


def test_whole_archive_is_used_whole(tmp_path: Path) -> None:
    small_history(operations=20).write(tmp_path, rows_per_file=8)
    archive = find_archive(str(tmp_path))
    assert archive.set_aside == ()
    assert archive.run_ids() == ["run-a"]
    files = archive.files(schema.REGISTRATIONS)
    assert [(file.run_id, file.file_number, file.rows) for file in files] == [
        ("run-a", 1, 8), ("run-a", 2, 8), ("run-a", 3, 4),
    ]  # fmt: skip
    assert [(file.first_call, file.last_call) for file in files] == [(2, 17), (19, 35), (37, 43)]
    assert files[0].first_at == START + timedelta(milliseconds=10)
    assert files[-1].last_at == START + timedelta(milliseconds=200)
    assert files[0].timeout_ms_max == 500


def test_window_leaves_out_files_without_rows_in_it(tmp_path: Path) -> None:
    small_history(operations=20).write(tmp_path, rows_per_file=5)
    archive = find_archive(str(tmp_path))
    since, until = START + timedelta(milliseconds=100), START + timedelta(milliseconds=110)
    assert [file.file_number for file in archive.files(schema.REGISTRATIONS, since=since)] == [2, 3, 4]
    assert [file.file_number for file in archive.files(schema.REGISTRATIONS, until=until)] == [1, 2]
    assert [file.file_number for file in archive.files(schema.REGISTRATIONS, since=since, until=until)] == [2]


def leave_unfinished(root: Path) -> None:
    unfinished = root / layout.unfinished_path(schema.EVENTS, "run-a", 1)
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"PAR1")


def leave_broken(root: Path) -> None:
    for path in small_history().write(root):
        path.write_bytes(b"PAR1")


@pytest.mark.parametrize(
    ("prepare", "uri", "said"),
    [
        (None, "nowhere", "^there is no archive at nowhere$"),
        (None, "file:///nowhere/at/all", "^there is no archive at file:///nowhere/at/all$"),
        (None, "ftp://somewhere/archive", r"^cannot open ftp://somewhere/archive: [^\n]+$"),
        (lambda root: (root / "file").touch(), "file", "is a file: give the folder"),
        (lambda _: None, ".", r"is empty: no file is complete yet$"),
        (leave_unfinished, ".", r"is empty: no file is complete yet \(1 unfinished in _writing/\)$"),
        (
            lambda root: write_table(root / "part-0.parquet", pa.table({"a": [1]}), None),
            ".",
            r"no usable file: 1 in no table's folder; for example .*part-0",
        ),
        (leave_broken, ".", "no usable file: 4 unreadable; for example .+: .+"),
    ],
)
def test_an_archive_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path], object] | None, uri: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if prepare is not None:
        prepare(tmp_path)
    with pytest.raises(ArchiveUnusable, match=said):
        find_archive(uri)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_object_stores_open_under_both_names(scheme: str) -> None:
    """s3: and s3a: are the same bucket; the options in the URI are for pyarrow and not part of the path."""
    found = location.open_location(f"{scheme}://bucket/history?region=us-east-1&endpoint_override=127.0.0.1:1")
    assert (found.root, found.filesystem.type_name) == ("bucket/history", "s3")
    assert found.spark_path("bucket/history/x") == "s3a://bucket/history/x"


def test_foreign_parquet_among_ours_is_set_aside(written: list[Path], tmp_path: Path) -> None:
    rows = table_of(schema.OUTCOMES, [])
    write_table(tmp_path / schema.OUTCOMES / "no-metadata.parquet", rows, None)
    halves = metadata_of(schema.OUTCOMES, "run-a", 9)
    del halves[layout.FILE_NUMBER_KEY]
    write_table(tmp_path / schema.OUTCOMES / "half-metadata.parquet", rows, halves)
    archive = find_archive(str(tmp_path))
    assert reasons(archive) == {"no-metadata.parquet": footer.FOREIGN, "half-metadata.parquet": footer.FOREIGN}
    assert len(archive.used) == len(written)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns("waited_ms"), "it lacks waited_ms"),
        (lambda table: table.append_column("colour", pa.array(["red"])), "it has unknown colour"),
        (lambda table: table.set_column(5, "session_id", pa.array([7])), "session_id is int64, not string"),
    ],
)
def test_other_columns_are_set_aside_and_named(tmp_path: Path, change: object, said: str) -> None:
    assert callable(change)
    history = small_history(operations=1)
    history.write(tmp_path)
    table = change(table_of(schema.OUTCOMES, history.rows[schema.OUTCOMES]))
    write_table(tmp_path / schema.OUTCOMES / "other.parquet", table, metadata_of(schema.OUTCOMES, "run-a", 2))
    (aside,) = find_archive(str(tmp_path)).set_aside
    assert (aside.reason, aside.detail, aside.rows) == (footer.FOREIGN, said, 1)


def test_columns_may_be_encoded_differently(tmp_path: Path) -> None:
    history = small_history(operations=2)
    table = table_of(schema.EVENTS, history.rows[schema.EVENTS])
    plain = table.cast(pa.schema([(field.name, footer.plain_type(field.type)) for field in table.schema]))
    shuffled = plain.select(sorted(plain.column_names)).replace_schema_metadata(metadata_of(schema.EVENTS, "run-a", 1))
    path = tmp_path / schema.EVENTS / "plain.parquet"
    path.parent.mkdir()
    pq.write_table(shuffled, path, store_schema=False)
    pq.write_table(shuffled, path)
    assert find_archive(str(tmp_path)).all_rows == 2


@pytest.mark.parametrize("kept", [0, 3, 7, 100, -1, -8])
def test_truncated_file_is_set_aside(written: list[Path], tmp_path: Path, kept: int) -> None:
    path = one_of(written, schema.EVENTS)
    path.write_bytes(path.read_bytes()[:kept])
    archive = find_archive(str(tmp_path))
    assert reasons(archive) == {path.name: footer.UNREADABLE}
    assert archive.set_aside[0].rows is None
    assert len(archive.used) == len(written) - 1


def test_strays_are_set_aside_and_hidden_files_skipped(written: list[Path], tmp_path: Path) -> None:
    shutil.copy(one_of(written, schema.OUTCOMES), tmp_path / schema.EVENTS / "moved.parquet")
    (tmp_path / "README.txt").write_text("our archive")
    (tmp_path / schema.EVENTS / "notes.txt").write_text("to do")
    (tmp_path / schema.EVENTS / "_SUCCESS").touch()
    (tmp_path / schema.EVENTS / ".part.parquet.crc").touch()
    archive = find_archive(str(tmp_path))
    strays = {"README.txt": footer.STRAY, "notes.txt": footer.STRAY}
    assert reasons(archive) == {**strays, "moved.parquet": footer.MISPLACED}
    assert [file.rows for file in archive.set_aside] == [None, 20, None]
    assert archive.leftovers == 0


@pytest.mark.parametrize("name", ["run-a-000001 (copy).parquet", "a/b/run-a-000001.parquet", "zzz.parquet"])
def test_copies_are_used_once(written: list[Path], tmp_path: Path, name: str) -> None:
    original = one_of(written, schema.OUTCOMES)
    copy = tmp_path / schema.OUTCOMES / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(original, copy)
    archive = find_archive(str(tmp_path))
    assert reasons(archive) == {copy.name: footer.COPY}
    assert sum(file.rows for file in archive.files(schema.OUTCOMES)) == 20


def test_of_different_copies_the_larger_one_is_used(written: list[Path], tmp_path: Path) -> None:
    """Of two files with the same number, the one with more rows is used. Equal files with two numbers are copies."""
    history = small_history()
    one_of(written, schema.OUTCOMES).rename(tmp_path / schema.OUTCOMES / "part.parquet")
    write_file(tmp_path, schema.OUTCOMES, history.rows[schema.OUTCOMES][:5])
    write_file(tmp_path, schema.EVENTS, history.rows[schema.EVENTS], number=2)
    archive = find_archive(str(tmp_path))
    assert [sum(file.rows for file in archive.files(table)) for table in (schema.OUTCOMES, schema.EVENTS)] == [20, 20]
    assert reasons(archive) == {"run-a-000001.parquet": footer.COPY, "run-a-000002.parquet": footer.COPY}


def test_call_that_goes_on_in_the_next_file_is_no_overlap(tmp_path: Path) -> None:
    """Files may roll in the middle of a call; only files that overlap by more may have duplicate rows."""
    history = History()
    history.register(1)
    for item in range(1, 9):
        history.register(1, item=item, item_count=9, call_number=1)
    history.register(2, 5)
    history.write(tmp_path, rows_per_file=3)
    archive = find_archive(str(tmp_path))
    assert len(archive.files(schema.REGISTRATIONS)) == 4
    assert archive.overlapping(schema.REGISTRATIONS) == []


def test_many_files_are_looked_at_side_by_side(tmp_path: Path) -> None:
    for run in range(4):
        for number in range(1, 13):
            row = History(f"run-{run:02d}").add(schema.EVENTS, run * 1000 + number, row=0, type="high_watermark")
            write_file(tmp_path, schema.EVENTS, [row], f"run-{run:02d}", number)
    files = find_archive(str(tmp_path)).files(schema.EVENTS)
    assert [(file.run_id, file.file_number) for file in files] == [
        (f"run-{run:02d}", number) for run in range(4) for number in range(1, 13)
    ]
