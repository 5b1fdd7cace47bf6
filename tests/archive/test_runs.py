"""Detection of live and dead runs."""

from pathlib import Path

import pytest
from pyarrow import fs

from purgatory.extensions.archive import layout
from purgatory.extensions.archive.run_details import LIMIT_NAMES, RunDetails
from purgatory.extensions.archive.runs import SILENT_S, RunFile, RunState, claim_dead_runs, remove_unfinished
from purgatory.testing import ManualClock
from tests.archive.archive_kit import FailingDisk

START_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / layout.WRITING).mkdir()
    return str(tmp_path)


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
    disk, clock = FailingDisk().filesystem(), ManualClock(START_MS)
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
    filesystem = fs.LocalFileSystem() if local else FailingDisk().filesystem()
    RunFile.create(filesystem, root, state_of("run-a")).remove()
    assert list(Path(root, layout.WRITING).iterdir()) == []
    assert claim_dead_runs(filesystem, root, "run-b") == []


def test_a_run_does_not_claim_itself(root: str) -> None:
    disk, clock = FailingDisk().filesystem(), ManualClock(START_MS)
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
