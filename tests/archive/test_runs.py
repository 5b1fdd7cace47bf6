"""Runs: which of them live and which are dead. Files: location, metadata, rolling, and a disk that fails."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
from purgatory.extensions.archive.run_details import LIMIT_NAMES, RunDetails
from purgatory.extensions.archive.runs import SILENT_S, RunFile, RunState, claim_dead_runs, remove_unfinished
from purgatory.extensions.archive.vocabulary import CallStamp, CannotArchive
from purgatory.testing import ManualClock
from tests.archive.archive_kit import failing_disk

START_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / layout.WRITING).mkdir()
    return str(tmp_path)


def elsewhere() -> fs.FileSystem:
    """A filesystem that is not a local one, so it has no locks."""
    return fs.SubTreeFileSystem("/", fs.LocalFileSystem())


def state_of(run_id: str) -> RunState:
    return RunState(run_id, "host-1", 17, call_number=5, time_ms=50, at_ms=500)


def test_a_run_on_a_local_disk_lives_as_long_as_its_lock(root: str) -> None:
    local, clock = fs.LocalFileSystem(), ManualClock(START_MS)
    run = RunFile.create(local, root, state_of("run-a"), clock.now_ms)
    clock.jump(int(SILENT_S * 10_000))
    assert claim_dead_runs(local, root, "run-b", clock.now_ms) == []
    run.state.call_number = 9
    run.renew()
    run.release()
    [dead] = claim_dead_runs(local, root, "run-b", clock.now_ms)
    assert dead.state == run.state
    assert dead.state.call_number == 9
    assert claim_dead_runs(local, root, "run-c", clock.now_ms) == []
    dead.release()
    [dead] = claim_dead_runs(local, root, "run-c", clock.now_ms)
    dead.remove()
    assert claim_dead_runs(local, root, "run-c", clock.now_ms) == []
    assert list(Path(root, layout.WRITING).iterdir()) == []


def test_a_run_elsewhere_lives_as_long_as_it_says_so(root: str) -> None:
    disk, clock = elsewhere(), ManualClock(START_MS)
    run = RunFile.create(disk, root, state_of("run-a"), clock.now_ms)
    clock.jump(int(SILENT_S * 900))
    assert claim_dead_runs(disk, root, "run-b", clock.now_ms) == []
    run.renew()
    clock.jump(int(SILENT_S * 900))
    assert claim_dead_runs(disk, root, "run-b", clock.now_ms) == []
    clock.jump(int(SILENT_S * 100))
    [dead] = claim_dead_runs(disk, root, "run-b", clock.now_ms)
    assert dead.state.run_id == "run-a"


@pytest.mark.parametrize("local", [True, False])
def test_a_run_that_ended_left_nothing(root: str, local: bool) -> None:
    filesystem = fs.LocalFileSystem() if local else elsewhere()
    RunFile.create(filesystem, root, state_of("run-a")).remove()
    assert list(Path(root, layout.WRITING).iterdir()) == []
    assert claim_dead_runs(filesystem, root, "run-b") == []


def test_a_run_does_not_claim_itself(root: str) -> None:
    disk, clock = elsewhere(), ManualClock(START_MS)
    RunFile.create(disk, root, state_of("run-a"), clock.now_ms)
    clock.jump(int(SILENT_S * 2_000))
    assert claim_dead_runs(disk, root, "run-a", clock.now_ms) == []


def test_only_leftovers_of_the_dead_run_are_removed(root: str) -> None:
    aside = Path(root, layout.WRITING)
    RunFile.create(fs.LocalFileSystem(), root, state_of("run-a")).release()
    names = [Path(layout.unfinished_path("outcomes", run, 3)).name for run in ("run-a", "run-a2", "a", "run-b")]
    for name in names:
        (aside / name).write_bytes(b"PAR1 half")
    [dead] = claim_dead_runs(fs.LocalFileSystem(), root, "run-b")
    assert remove_unfinished(fs.LocalFileSystem(), root, dead.state.run_id) == 1
    assert sorted(path.name for path in aside.glob("*.parquet")) == sorted(names[1:])


def test_files_that_are_none_of_ours_are_passed_over(root: str) -> None:
    for name, content in (
        ("x.running", b"{}"),
        ("y.running", b"\xff"),
        ("z.running", b'{"run_id": 1}'),
        ("other", b""),
    ):
        Path(root, layout.WRITING, name).write_bytes(content)
    assert claim_dead_runs(fs.LocalFileSystem(), root, "run-b") == []


def test_details_of_a_run_make_its_engine_again() -> None:
    """The marker's detail creates an engine with the same settings; fields added by newer versions are ignored."""
    limits = {name: 5 + place for place, name in enumerate(LIMIT_NAMES)}
    limits["timeout_ms_max"] = 100
    details = RunDetails("1.2", tick_ms=3, strict_partitions=True, limits=limits, host="h", pid=1)
    text = (
        details.to_json()
        .replace('"version"', '"novelty": 1, "version"')
        .replace('"limits": {', '"limits": {"new": 1, ')
    )
    assert RunDetails.from_json(text) == details
    engine = details.make_engine(7)
    assert {name: getattr(engine.limits, name) for name in LIMIT_NAMES} == limits


@pytest.mark.parametrize("detail", ["[]", "{}", "no json"])
def test_details_that_are_none_are_refused(detail: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        RunDetails.from_json(detail)


# Files.

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
    paths = [path for path in sorted((folder / schema.CALLS).rglob("*.parquet")) if path.is_file()]
    tables = [pq.ParquetFile(path).read() for path in paths]
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


def blocked(folder: Path, fault: str) -> AbstractContextManager[None]:
    """In the block the first file cannot be written, or not moved into its place."""

    @contextmanager
    def in_the_way() -> Iterator[None]:
        place = folder / f"calls/date=2023-11-15/hour=01/{RUN}-000001.parquet"
        place.mkdir(parents=True)
        yield
        place.rmdir()

    return in_the_way() if fault == "move" else failing_disk(folder)


@pytest.mark.parametrize("fault", ["write", "move"])
def test_what_a_broken_disk_refuses_is_kept_and_tried_again(tmp_path: Path, fault: str) -> None:
    """That a file which is half written cannot be deleted either is not reported as another error."""
    writer = writer_to(tmp_path)
    writer.write(schema.CALLS, row(1))
    with blocked(tmp_path, fault):
        for number in (2, 3):
            with pytest.raises(OSError, match=r"Cannot create|Failed renaming"):
                writer.roll()
            assert call_numbers(tmp_path) == []
            writer.write(schema.CALLS, row(number))
        assert writer.statistics.rows_kept[schema.CALLS] == 0
        assert is_due(writer)
    writer.roll()
    assert call_numbers(tmp_path) == [1, 2, 3]
    assert not is_due(writer)
    assert [path for path in files_in(tmp_path) if not path.startswith("calls/")] == []


@pytest.mark.parametrize("place", ["kept/here", "file://{folder}/kept/here", "{folder}/kept/here"])
def test_a_path_or_a_uri_is_a_place(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filesystem, root = open_archive(place.format(folder=tmp_path))
    assert isinstance(filesystem, fs.LocalFileSystem)
    assert Path(root) == tmp_path / "kept" / "here"
    assert (tmp_path / "kept" / "here" / layout.WRITING).is_dir()
    assert files_in(tmp_path) == []
