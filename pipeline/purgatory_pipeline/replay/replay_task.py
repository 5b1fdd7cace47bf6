"""The work of an executor: runs in; sums, or a row for each operation, out, as record batches."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory_pipeline.archive.daemon_runs import read_marks
from purgatory_pipeline.engine_rows.row_chunk import Column, RowChunk
from purgatory_pipeline.location import open_location
from purgatory_pipeline.replay.call_windows import windows
from purgatory_pipeline.replay.open_operations import OpenOperations
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.replay.replay_sums import ReplaySums
from purgatory_pipeline.replay.run_files import RunContext, RunFiles, TableReader, chunks_of
from purgatory_pipeline.replay.run_replay import RunReplay
from purgatory_pipeline.spark.malloc import keep_freed_memory

VERDICTS: Final = ("equal", "different", "no outcome", "in doubt")

RESULTS: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("policy", pa.string()),
        ("session_number", pa.int64()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("topic", pa.string()),  # of its first item; null: a signal
        ("item_count", pa.int64()),
        ("recorded", pa.string()),  # recorded outcome; null: it had none
        ("recorded_waited_ms", pa.int64()),
        ("replayed", pa.string()),
        ("replayed_waited_ms", pa.int64()),
        ("verdict", pa.string()),  # VERDICTS; under a policy: next to the row of the policy `unchanged`
    ]
)
"""A row for each operation and policy."""


@dataclass(frozen=True)
class ReplayPlan:
    """The archive to replay, and the policies to try side by side."""

    uri: str
    policies: tuple[Policy, ...]


def replay_runs(replay: ReplayPlan, runs: Iterable[RunFiles], *, results: bool) -> Iterator[pa.RecordBatch]:
    """Replays whole runs from their files: yields the sums of all of them, or a row for each operation."""
    place = open_location(replay.uri)
    tally = ReplaySums()
    for run in runs:
        files = [TableReader(place, file.path, file.table) for file in run.files]
        yield from replay_run(replay, run.facts, chunks_of(files, tally.counts), tally, results=results)
    if not results:
        yield from tally.table().to_batches()


def replay_run(
    replay: ReplayPlan, facts: RunContext, chunks: Iterable[RowChunk], tally: ReplaySums, *, results: bool
) -> Iterator[pa.RecordBatch]:
    """Replays one run and adds to the sums; yields rows for its operations if `results`."""
    keep_freed_memory()
    rows: list[pa.RecordBatch] = []

    def add_rows(run_id: str, finished: OpenOperations, verdicts: Sequence[Column]) -> None:
        rows.extend(result_rows(replay.policies, [*tally.topics], run_id, finished, verdicts))

    marks = read_marks(replay.uri, facts.run_id, facts.marks)
    run = RunReplay(facts, replay.policies, tally, add_rows if results else None, marks)
    collecting = gc.isenabled()
    gc.disable()  # there are many objects and no cycles
    try:
        for window in windows(chunks, facts.first_ms, repeated=facts.repeated):
            run.take(window)
            yield from rows
            rows.clear()
        run.finish()
        yield from rows
    finally:
        if collecting:
            gc.enable()


def result_rows(
    policies: Sequence[Policy], topics: Sequence[str], run_id: str, finished: OpenOperations, verdicts: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """A batch for each policy, with a row for each operation. `topics` are numbered from 1."""
    outcomes = names_by_code(OUTCOME_NAMES)
    common = {
        "run_id": np.full(len(finished), run_id, object),
        "session_number": finished["session"],
        "operation_id": finished["operation"],
        "kind": names_by_code(KIND_NAMES)[finished["kind"]],
        "topic": np.array([None, *topics], object)[finished["topic"]],
        "item_count": finished["item_counts"],
        "recorded": outcomes[finished.recorded["outcome"]],
        "recorded_waited_ms": finished.recorded["waited_ms"],
    }
    for policy, ends, verdict in zip(policies, finished.replayed, verdicts, strict=True):
        columns = common | {
            "policy": np.full(len(finished), policy.label, object),
            "replayed": outcomes[ends["outcome"]],
            "replayed_waited_ms": ends["waited_ms"],
            "verdict": np.array(VERDICTS, object)[verdict],
        }
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in RESULTS], schema=RESULTS
        )


def names_by_code(names: dict[int, str]) -> Column:
    """None where a code has no name."""
    return np.array([names.get(code) for code in range(max(names) + 1)], object)
