"""The examples in docs/archive.md for reading an archive work."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.extensions.archive import schema
from tests.archive.archive_kit import ArchivedHost, produces
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events

PAGE = Path(__file__).resolve().parents[2] / "docs" / "archive.md"


def examples() -> dict[str, str]:
    """The page's Python examples, by the first word of the line before each."""
    found = re.findall(r"\n(\w+)[^\n]*:\n\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(found)


@pytest.mark.parametrize("tool", ["DuckDB", "pandas"])
async def test_the_page_reads_an_archive(tmp_path: Path, tool: str) -> None:
    """Run in the folder that contains `history`, the example finds both outcomes, which are in two files."""
    pytest.importorskip(tool.lower())
    (tmp_path / "history").mkdir()
    kept = ArchivedHost(tmp_path / "history")
    kept.fill(each=2)
    kept.clock.jump(2_000)
    kept.host.reaper.turn()
    kept.keep_by_hand(2)
    kept.register(produces(3))
    await apply_events(kept.host, mark_batch(10))
    await kept.start_and_close()
    assert len(list((tmp_path / "history" / schema.OUTCOMES).rglob("*.parquet"))) == 2
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", examples()[tool]], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "satisfied" in ended.stdout
    assert "expired" in ended.stdout


def test_the_page_shows_spark_too() -> None:
    assert "spark.read.parquet" in examples()["Spark"]
