"""The report of a growing archive: equal to the report of the same files made at once, whatever was there before."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.archive.location import open_output
from purgatory_pipeline.cli import main
from purgatory_pipeline.errors import PolicyInvalid
from purgatory_pipeline.generate.history_plan import make_plan
from purgatory_pipeline.generate.make_archive import make_archive
from purgatory_pipeline.report import stored_counts
from purgatory_pipeline.report.command import report
from purgatory_pipeline.report.follow import ReportFollower
from purgatory_pipeline.report.report_builder import FROM_ROWS, ReportOptions
from purgatory_pipeline.report.report_tables import TABLES
from pyspark.sql import SparkSession

OPTIONS = ReportOptions(window_ms=3_600_000)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some forty files of five runs."""
    folder = tmp_path_factory.mktemp("history")
    make_archive(spark, make_plan("20k", runs=5, seed=11, slow_replica="3=+200ms@20%"), str(folder))
    return folder


class GrowingArchive:
    """An archive that gets the files of a history bit by bit, in an order drawn at random."""

    def __init__(self, history: Path, folder: Path, seed: int) -> None:
        self.history, self.folder = history, folder
        self.coming = sorted(path.relative_to(history) for path in history.rglob("date=*/**/*.parquet"))
        random.Random(seed).shuffle(self.coming)

    def add(self, files: int) -> None:
        for name in self.coming[:files]:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.history / name, self.folder / name)
        del self.coming[:files]


@pytest.fixture
def growing(history: Path, tmp_path: Path) -> GrowingArchive:
    return GrowingArchive(history, tmp_path / "archive", seed=3)


def new_follower(spark: SparkSession, growing: GrowingArchive, tmp_path: Path) -> ReportFollower:
    place = open_output(str(tmp_path / "followed"))
    return ReportFollower(spark, str(growing.folder), place, OPTIONS)


def tables_in(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, table in TABLES.items():
        rows = pd.read_parquet(folder / "tables" / name)
        yield name, rows.sort_values(list(table.key)).reset_index(drop=True)


def assert_equals_report_at_once(growing: GrowingArchive, tmp_path: Path) -> None:
    """All tables, to the last figure."""
    report(str(growing.folder), out=str(tmp_path / "once"), window="1h")
    followed = dict(tables_in(tmp_path / "followed"))
    for name, rows in tables_in(tmp_path / "once"):
        pd.testing.assert_frame_equal(followed[name], rows, obj=name)


@pytest.mark.slow  # asks Spark
def test_equal_at_random_cuts_and_over_deaths(
    spark: SparkSession, growing: GrowingArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes come before their registrations, runs before their beginnings; processes die before a commit and while
    it is written. Tables from rows may lag, and say so, until the command has caught up.
    """
    monkeypatch.setattr(stored_counts, "UPDATES_MAX", 1)  # every second update sums up
    growing.add(len(growing.coming) // 2)
    new_follower(spark, growing, tmp_path).fold(find_archive(str(growing.folder)), OPTIONS)
    growing.add(3)
    assert dies_before_commit(new_follower(spark, growing, tmp_path), growing) == 2
    assert (tmp_path / "followed" / "counts" / "000002").is_dir()
    (tmp_path / "followed" / "counts" / "000002" / stored_counts.FOLDED).write_text('{"form": 1, "numb')
    follower = new_follower(spark, growing, tmp_path)
    assert follower.stored.folded is not None
    assert follower.stored.folded.number == 1
    first = follower.update(whole=True)
    assert first is not None
    assert first.is_whole
    assert follower.update(whole=True) is None
    growing.add(4)
    second = follower.update()
    assert second is not None
    assert not second.is_whole
    assert second.written["backlog"][0] is first.written["backlog"][0]
    assert second.notes[-1].startswith(", ".join(FROM_ROWS))
    growing.add(len(growing.coming))
    out = str(tmp_path / "followed")
    assert main(["report", str(growing.folder), "--out", out, "--window", "1h", "--follow", "--until-idle"]) == 0
    assert_equals_report_at_once(growing, tmp_path)
    assert (tmp_path / "followed" / "report.html").stat().st_size > 100_000


def dies_before_commit(follower: ReportFollower, growing: GrowingArchive) -> int:
    """Counts what is new, but does not get to the commit; returns the number of the update."""

    class Died(BaseException):
        """Nothing catches this."""

    def die(folded: stored_counts.FoldedFiles) -> None:
        raise Died(folded.number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower.stored, "commit", die)
        with pytest.raises(Died) as died:
            follower.fold(find_archive(str(growing.folder)), OPTIONS)
    return int(died.value.args[0])


@pytest.mark.slow  # asks Spark
def test_only_new_files_are_counted(spark: SparkSession, growing: GrowingArchive, tmp_path: Path) -> None:
    """With other options, or when a counted file is gone, all are counted anew."""
    growing.add(12)
    follower = new_follower(spark, growing, tmp_path)
    found = find_archive(str(growing.folder))
    counted = [file for file in found.used if file.table in ("registrations", "outcomes")]
    assert follower.fold(found, OPTIONS) == len(counted)
    assert follower.fold(found, OPTIONS) == 0
    Path(counted.pop().path).unlink()
    found = find_archive(str(growing.folder))
    assert follower.fold(found, OPTIONS) == len(counted)
    assert follower.fold(found, ReportOptions(window_ms=60_000)) == len(counted)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    """Part of a history cannot be followed, and only what is followed can be idle."""
    with pytest.raises(PolicyInvalid, match="leave out --since"):
        report(str(tmp_path), out=str(tmp_path), since="2026-11-21", follow=True)
    with pytest.raises(PolicyInvalid, match="give --follow"):
        report(str(tmp_path), out=str(tmp_path), until_idle=True)
