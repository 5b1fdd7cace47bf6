"""What docs/archive.md shows for reading an archive works on an archive."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.archive import schema
from purgatory.archive.files import ArchiveWriter, open_archive
from purgatory.archive.records import Names, completion_records
from purgatory.archive.rows import make_rows
from purgatory.archive.vocabulary import NO_SESSION, CallStamp
from purgatory.engine import codes
from purgatory.engine.completions import Completions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "archive.md"


def examples() -> dict[str, str]:
    """The page's Python, by the first word of the line before it."""
    found = re.findall(r"\n(\w+)[^\n]*:\n\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(found)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """An archive of one satisfied and two expired waits, in two files."""
    writer = ArchiveWriter(*open_archive(str(tmp_path / "history")), "run-a")
    for call_number, outcome in ((1, codes.SATISFIED), (2, codes.EXPIRED), (3, codes.EXPIRED)):
        completions = Completions(0)
        completions.add_item(("orders", 0), 0, 10, 10, 0, -1, -1.0)
        completions.add_operation(call_number, codes.PRODUCE, outcome, 10 * call_number, 0, 1)
        completions.finish()
        stamp = CallStamp("run-a", call_number, 5, 1_700_000_000_000 + call_number)
        names: Names = {}
        ended = completion_records(names, stamp, NO_SESSION, completions)
        writer.write(schema.OUTCOMES, make_rows(schema.OUTCOMES, ended, list(names)))
        writer.roll()
    return tmp_path


@pytest.mark.parametrize("tool", ["DuckDB", "pandas"])
def test_the_page_reads_an_archive(history: Path, tool: str) -> None:
    """As shown, in the folder that holds `history`, it finds both outcomes."""
    pytest.importorskip(tool.lower())
    ended = subprocess.run(
        [sys.executable, "-c", examples()[tool]], cwd=history, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "satisfied" in ended.stdout
    assert "expired" in ended.stdout


def test_the_page_shows_spark_too() -> None:
    """The third way is there; the pipeline's own tests read archives with Spark."""
    assert "spark.read.parquet" in examples()["Spark"]
