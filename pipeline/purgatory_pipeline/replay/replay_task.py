"""The work of an executor: runs in; sums, or a row for each operation, out, as record batches."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory_pipeline.archive.location import open_location
from purgatory_pipeline.replay.load.call_windows import windows
from purgatory_pipeline.replay.load.row_chunk import Column, RowChunk
from purgatory_pipeline.replay.load.run_files import RunContext, RunFiles
from purgatory_pipeline.replay.load.table_reader import TableReader, chunks_of
from purgatory_pipeline.replay.play.open_operations import OpenOperations
from purgatory_pipeline.replay.play.replay_sums import ReplaySums
from purgatory_pipeline.replay.play.run_replay import RunReplay
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.spark.malloc import keep_freed_memory

VERDICTS: Final = ("equal", "different", "no outcome", "in doubt")
AS_RECORDED: Final = "as recorded"
"""Name of the unchanged policy in results."""

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
        ("verdict", pa.string()),  # VERDICTS; unless something was changed, `equal` means every answer
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
        yield tally.batch()


def replay_run(
    replay: ReplayPlan, facts: RunContext, chunks: Iterable[RowChunk], tally: ReplaySums, *, results: bool
) -> Iterator[pa.RecordBatch]:
    """Replays one run and adds to the sums; yields rows for its operations if `results`."""
    keep_freed_memory()
    rows = ResultRows(replay.policies, tally.topics) if results else None
    run = RunReplay(facts, replay.policies, tally, None if rows is None else rows.add)
    collecting = gc.isenabled()
    gc.disable()  # there are many objects and no cycles
    try:
        for window in windows(chunks, facts.first_ms, repeated=facts.repeated):
            run.take(window)
            if rows is not None:
                yield from rows.take()
        run.finish()
        if rows is not None:
            yield from rows.take()
    finally:
        if collecting:
            gc.enable()


class ResultRows:
    """Collects a row for each operation and policy."""

    def __init__(self, policies: Sequence[Policy], topics: dict[str, int]) -> None:
        self._policies: Final = policies
        self._topics: Final = topics
        self._batches: list[pa.RecordBatch] = []

    def add(self, run_id: str, operations: OpenOperations, done: Column, verdicts: list[Column]) -> None:
        kinds, outcomes = words(KIND_NAMES), words(OUTCOME_NAMES)
        kind = operations["kind"][done]
        topics = np.array([None, *self._topics], object)
        rows = len(kind)
        common = {
            "run_id": np.full(rows, run_id, object),
            "session_number": operations["session"][done],
            "operation_id": operations["operation"][done],
            "kind": kinds[kind],
            "topic": topics[operations["topic"][done]],
            "item_count": operations["item_counts"][done],
            "recorded": outcomes[operations.recorded[done]],
            "recorded_waited_ms": operations.recorded_waited[done],
        }
        for place, policy in enumerate(self._policies):
            own = {
                "policy": np.full(rows, policy.label or AS_RECORDED, object),
                "replayed": outcomes[operations.outcomes[place][done]],
                "replayed_waited_ms": operations.waited[place][done],
                "verdict": np.array(VERDICTS, object)[verdicts[place][done]],
            }
            columns = common | own
            arrays = [pa.array(columns[field.name], field.type) for field in RESULTS]
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=RESULTS))

    def take(self) -> list[pa.RecordBatch]:
        taken, self._batches = self._batches, []
        return taken


def words(names: dict[int, str]) -> Column:
    """Names by their codes; None where there is none."""
    return np.array([names.get(code) for code in range(max(names) + 1)], object)
