"""What a host was told and said is all in its archive: a fresh engine fed with it ends everything the same way."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.archive import schema
from tests.service.archive_life import Life
from tests.service.archive_replay import Replay, rows_of, without

STEPS = 120


async def lived(folder: Path, seed: int, steps: int = STEPS) -> None:
    life = Life(folder, seed)
    await life.live(steps)
    await life.end()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=8)
async def test_a_fresh_engine_ends_everything_the_same_way(seed: int) -> None:
    """Row by row, the outcomes of a random life are those of its archive's calls on a fresh engine."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        await lived(folder, seed)
        replay = Replay(folder)
        kept = rows_of(folder, schema.OUTCOMES)
        assert without(replay.outcomes, "at") == without(kept, "at")
