"""The lineage store keeps lineages for the next run and excludes other processes."""

import sqlite3
from pathlib import Path

import pytest
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.lineage_store import FILE_NAME, LineageStore
from purgatory_connectors.publisher.mark_lineage import MarkLineage
from purgatory_connectors.publisher.observation import Observation


def test_a_kept_lineage_is_the_floor_of_the_next_run(tmp_path: Path) -> None:
    """Epoch, identities and offset are restored; the offset is a floor that this run has not seen yet."""
    lineage = MarkLineage(2, "a")
    lineage.apply(Observation("t/x", 1, 50, "a"))
    lineage.apply(Observation("t/x", 1, 40, "b"))
    gone = MarkLineage(0)
    gone.apply(Observation("t/y", 0, None))
    store = LineageStore(tmp_path)
    store.keep([(("t/x", 1), lineage), (("t/y", 0), gone)])
    store.close()
    kept = LineageStore(tmp_path).load()
    assert set(kept) == {("t/x", 1), ("t/y", 0)}
    found = kept["t/x", 1]
    assert (found.epoch, found.identity, found.retired) == (3, "b", ("a",))
    assert (found.floor, found.offset, found.is_seen, found.is_gone) == (40, -1, False, False)
    assert kept["t/y", 0].is_gone


def test_the_file_is_for_one_source(tmp_path: Path) -> None:
    """A second source in the same folder is refused with a remedy, until the first one has ended."""
    store = LineageStore(tmp_path)
    with pytest.raises(SourceRefused, match="give each a folder of its own"):
        LineageStore(tmp_path)
    store.close()
    LineageStore(tmp_path).close()


def test_files_that_cannot_be_used_are_refused_and_left_alone(tmp_path: Path) -> None:
    """A damaged file and one of a newer version cause errors that name the file."""
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, but long enough to look like none" * 100)
    with pytest.raises(SourceRefused, match=FILE_NAME):
        LineageStore(tmp_path)
    assert path.read_bytes().startswith(b"not a database")
    path.unlink()
    LineageStore(tmp_path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(SourceRefused, match="newer version"):
        LineageStore(tmp_path)
