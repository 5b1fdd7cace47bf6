"""A history repeated on the following days is an archive like any other."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from purgatory_pipeline.analytics.archive.catalog import ArchiveCatalog, find_archive
from purgatory_pipeline.analytics.archive.daemon_runs import read_runs

from bench.pipeline.multiplied import multiply
from bench.pipeline.timings import operations_in
from purgatory.extensions.archive import schema
from tests.pipeline.archive.histories import START, small_history


@pytest.fixture
def archives(tmp_path: Path) -> tuple[ArchiveCatalog, ArchiveCatalog]:
    """A small history of one run, and the same history repeated three times."""
    once, thrice = tmp_path / "once", tmp_path / "thrice"
    history = small_history()
    for row in history.rows[schema.OUTCOMES]:
        row.update(required_offset=1, reached_offset=1, log_start_offset=0)  # the daemon's code requires them
    history.write(once)
    (once / "_truth").mkdir()
    (once / "_truth" / "truth.json").write_text(json.dumps({"operations": 2, "hours": 1}), "utf-8")
    multiply(once, thrice, 3)
    assert operations_in(thrice) == 6
    return find_archive(str(once)), find_archive(str(thrice))


def test_each_run_is_there_on_each_day(archives: tuple[ArchiveCatalog, ArchiveCatalog]) -> None:
    """Three runs with new names, each with all rows and a day after the previous one; nothing is set aside."""
    once, thrice = archives
    assert thrice.set_aside == ()
    assert thrice.leftovers == 0
    assert thrice.run_ids() == [f"{run}-{day:03d}" for run in once.run_ids() for day in (1, 2, 3)]
    for table in schema.TABLES:
        assert thrice.rows(table) == 3 * once.rows(table)
    first = [
        min(file.first_at for file in thrice.used if file.run_id == run and file.first_at) for run in thrice.run_ids()
    ]
    assert [at - first[0] for at in first] == [timedelta(days=day) for day in range(3)]
    assert first[0] - START < timedelta(hours=1)
    assert len(read_runs(thrice)) == 3


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    """A folder that contains files is refused before anything is read."""
    (tmp_path / "there").touch()
    with pytest.raises(FileExistsError, match="has files in it"):
        multiply(tmp_path / "nowhere", tmp_path, 2)
