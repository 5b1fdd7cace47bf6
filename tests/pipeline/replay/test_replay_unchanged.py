"""An unchanged replay reproduces what happened, however the rows are cut and divided."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from purgatory_pipeline.engine_rows.row_chunk import RowChunk
from purgatory_pipeline.replay.call_windows import windows
from purgatory_pipeline.replay.division import BinAssignment, Connections, pack_bins
from purgatory_pipeline.replay.policy import UNCHANGED
from purgatory_pipeline.replay.replay_sums import CHANGES, EQUAL, ReplaySums
from purgatory_pipeline.replay.run_files import RunContext
from purgatory_pipeline.replay.run_replay import RunReplay
from purgatory_pipeline.replay.shuffle import assign_bins, pack, unpack

from purgatory.extensions.archive import schema
from tests.pipeline.replay.lives import chunks_of, record_life

BINS = 5


def replayed(facts: RunContext, parts: Iterable[list[RowChunk]]) -> ReplaySums:
    sums = ReplaySums()
    for chunks in parts:
        run = RunReplay(facts, [UNCHANGED], sums)
        for window in windows(chunks, facts.first_ms, rows_min=20):
            run.take(window)
        run.finish()
    return sums


def chunks_of_bin(chunks: list[RowChunk], assignment: BinAssignment, number: int) -> list[RowChunk]:
    """The rows that one bin receives, by first call."""
    found = []
    for chunk in chunks:
        spread_out, bins = assign_bins(chunk, assignment, Counter())
        if (bins == number).any():
            found.append(unpack(pack(spread_out.take(bins == number).with_names_used(few=1))))
    return sorted(found, key=lambda chunk: chunk.first_call)


@pytest.mark.parametrize("seed", range(1, 13))
def test_every_operation_ends_as_recorded(tmp_path: Path, seed: int) -> None:
    """Outcome, wait, lateness and answers are equal, also when the run is divided over bins.

    In bins, each operation is replayed once, even where one group of partitions is divided.
    """
    life = record_life(tmp_path, seed)
    chunks = chunks_of(life, random.Random(seed))
    connections = Connections(life.facts.details.engine_limits().signal_keys_max)
    for chunk in chunks:
        if chunk.table in {schema.REGISTRATIONS, schema.EVENTS}:
            connections.add(chunk)
    (assignment,) = pack_bins([connections], bins=BINS, cores=3)
    ended = life.tables[schema.OUTCOMES].column("item").to_pylist().count(0)
    assert ended > 100
    whole = replayed(life.facts, [chunks])
    divided = replayed(life.facts, (chunks_of_bin(chunks, assignment, number) for number in range(BINS)))
    for sums in (whole, divided):
        rows = [row for row in sums.table().to_pylist() if row["section"] == CHANGES]
        assert {row["detail"] for row in rows} == {EQUAL}
        assert sum(row["operations"] for row in rows) == ended
        assert all(row["recorded"] == row["replayed"] for row in rows)
    assert whole.counts["outcomes"] == ended
