"""An unchanged replay reproduces life, whatever happened in it, and however its rows are cut and divided."""

import random
from collections import Counter

import pytest
from purgatory_pipeline.analytics.replay.divide.bin_packing import BinAssignment, pack_bins
from purgatory_pipeline.analytics.replay.divide.connections import Connections
from purgatory_pipeline.analytics.replay.divide.shuffle import assign_bins
from purgatory_pipeline.analytics.replay.load.call_windows import windows
from purgatory_pipeline.analytics.replay.load.row_packing import pack, unpack
from purgatory_pipeline.analytics.replay.load.run_files import RunContext
from purgatory_pipeline.analytics.replay.play.replay_sums import CHANGES, EQUAL, ReplaySums
from purgatory_pipeline.analytics.replay.play.run_replay import RunReplay
from purgatory_pipeline.analytics.replay.policy import UNCHANGED
from purgatory_pipeline.engine_rows.row_chunk import RowChunk

from purgatory.extensions.archive import schema
from tests.pipeline.replay.recorded_run import RecordedRun, Tables, chunks_of, record_run

BATCHES = 400


def context_of(recorded: RecordedRun) -> RunContext:
    """What a replay must know of it."""
    return RunContext(recorded.run_id, recorded.details, recorded.first_ms, recorded.now_ms)


def replayed(recorded: RecordedRun, chunks: list[RowChunk], tally: ReplaySums, rows_min: int = 100) -> None:
    """Replays some rows of a life, unchanged."""
    run = RunReplay(context_of(recorded), [UNCHANGED], tally)
    for window in windows(chunks, recorded.first_ms, rows_min=rows_min):
        run.take(window)
    run.finish()


def sums_of(tally: ReplaySums) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Operations by verdict, and by outcome in life and in the replay."""
    rows = [row for row in tally.table().to_pylist() if row["section"] == CHANGES]
    verdicts: Counter[int] = Counter()
    outcomes: Counter[tuple[int, int]] = Counter()
    for row in rows:
        verdicts[row["detail"]] += row["operations"]
        outcomes[row["recorded"], row["replayed"]] += row["operations"]
    return dict(verdicts), dict(outcomes)


def ended_in_life(tables: Tables) -> int:
    """Operations that have an outcome."""
    return sum(item == 0 for item in tables[schema.OUTCOMES].column("item").to_pylist())


@pytest.mark.parametrize("seed", range(1, 41))
def test_a_life_is_reproduced(seed: int) -> None:
    """Every operation ends in the replay with the same outcome, wait, lateness and answers as in life."""
    recorded = record_run(seed, BATCHES)
    tables = recorded.tables()
    tally = ReplaySums()
    replayed(recorded, chunks_of(tables, random.Random(seed)), tally)
    verdicts, outcomes = sums_of(tally)
    ended = ended_in_life(tables)
    assert verdicts == ({EQUAL: ended} if ended else {})
    assert all(recorded == replay for recorded, replay in outcomes)
    assert tally.counts["registrations"] == tally.counts["outcomes"] == ended


@pytest.mark.parametrize("seed", range(101, 113))
def test_a_life_is_reproduced_in_parts(seed: int) -> None:
    """Divided over bins, also where one group of partitions is divided, each operation is replayed once, and equal."""
    recorded = record_run(seed, BATCHES)
    tables = recorded.tables()
    rng = random.Random(seed)
    chunks = chunks_of(tables, rng)
    connections = Connections(recorded.details.engine_limits().signal_keys_max)
    for chunk in chunks:
        if chunk.table in {schema.REGISTRATIONS, schema.EVENTS}:
            connections.add(chunk)
    (assignment,) = pack_bins([connections], bins=5, cores=3)
    tally = ReplaySums()
    for number in range(5):
        replayed(recorded, chunks_of_bin(chunks, assignment, number), tally)
    verdicts, _ = sums_of(tally)
    ended = ended_in_life(tables)
    assert verdicts == ({EQUAL: ended} if ended else {})


def chunks_of_bin(chunks: list[RowChunk], assignment: BinAssignment, number: int) -> list[RowChunk]:
    """What would come together in one bin, by first call."""
    found = []
    for chunk in chunks:
        spread_out, bins = assign_bins(chunk, assignment, Counter())
        if (bins == number).any():
            found.append(unpack(pack(spread_out.take(bins == number).with_names_used(few=1))))
    return sorted(found, key=lambda chunk: chunk.first_call)
