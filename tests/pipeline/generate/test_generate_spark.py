"""`generate` on Spark: the archive is complete and has no duplicates, whichever task made which run."""

import json
from pathlib import Path

import pytest
from purgatory_pipeline.archive.accounting import account
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import EXIT_UNUSABLE, main
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.generate.history_plan import make_plan
from purgatory_pipeline.generate.make_archive import make_archive, make_run
from purgatory_pipeline.generate.truth import summarize
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from purgatory.archive import schema
from tests.archive.archive_replay import read_table

PLAN = make_plan("6k", runs=3, seed=5)


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    made = make_archive(spark, PLAN, str(folder))
    assert (made.runs, made.operations) == (PLAN.runs, PLAN.operations)
    summarize(PLAN, str(folder))
    return folder


@pytest.mark.slow  # asks Spark
def test_readers_find_the_whole_history_and_nothing_wrong(spark: SparkSession, archive: Path) -> None:
    """Every row is used, every operation has its end, every run is complete; the truth beside it is skipped, and counts
    rows and outcomes as Spark does.
    """
    found = find_archive(str(archive))
    taken = account(spark, found)
    truth = json.loads((archive / "_truth" / "truth.json").read_text())
    assert taken.rows_in() == taken.rows_used() == sum(truth["totals"]["rows"].values())
    assert taken.findings == ()
    assert taken.notes() == []
    assert {run.state for run in taken.runs} == {schema.ENDED}
    assert len(taken.runs) == PLAN.runs
    counted: dict[str, dict[str, int]] = {}
    first = found.read(spark, schema.OUTCOMES).where(F.col("item") == 0)
    for row in first.groupBy("kind", "outcome").count().collect():
        counted.setdefault(row["kind"], {})[row["outcome"]] = row["count"]
    assert counted == truth["outcomes"]
    assert truth["totals"]["operations"] == PLAN.operations


@pytest.mark.slow  # reads files that Spark's tasks have made
def test_it_does_not_matter_who_makes_a_run(archive: Path, tmp_path: Path) -> None:
    """A run made alone, in this process, has the rows that it has in the archive that Spark's tasks made."""
    run = PLAN.run(1)
    make_run(run, str(tmp_path))
    for table in schema.TABLES:
        whole = read_table(archive, table)
        own = whole.filter([value == run.run_id for value in whole["run_id"].to_pylist()])
        assert own.to_pylist() == read_table(tmp_path, table).to_pylist()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is added to what is there, and nothing of it is touched: one line says what to do."""
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["generate", "--operations", "1k", "--out", str(tmp_path)]) == EXIT_UNUSABLE
    said = capsys.readouterr().err
    assert "is not empty" in said
    assert "give another --out" in said
    assert [path.name for path in tmp_path.iterdir() if path.name != "_writing"] == ["mine.txt"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file is no folder; the message names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveUnusable, match="file"):
        make_archive(None, PLAN, str(tmp_path / "file"))  # type: ignore[arg-type] # it does not come to Spark


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--operations", "lots"], "--operations lots"),
        (["--operations", "1k", "--slow-replica", "fast"], "--slow-replica fast"),
        (["--operations", "1k", "--topics", "a b"], "--topics a b"),
    ],
)
def test_bad_options_end_with_one_line(
    options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the option and its value, and no traceback."""
    assert main(["generate", *options, "--out", str(tmp_path / "out")]) == EXIT_UNUSABLE
    said = capsys.readouterr().err
    assert said.startswith(f"purgatory-pipeline: {named}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
