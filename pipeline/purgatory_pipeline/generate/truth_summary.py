"""The truth of a whole history, summed up from its runs: what was planted, what came out, and exact quantiles."""

import json
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.archive.files import open_archive
from purgatory_pipeline.generate.history_plan import BROKERS, SWING, HistoryPlan
from purgatory_pipeline.generate.make_archive import RUNS, TRUTH, write_text
from purgatory_pipeline.generate.truth import BOTH

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
HOTTEST: Final = 20

_TEXT, _FLOAT, _INSTANT = pa.string(), pa.float64(), pa.timestamp("ms", tz="UTC")
_INT, _ID = pa.int64(), pa.int32()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


# Null: `last_replica_id` where both followers were last or nobody waited, `joined_at` if that was after the run.
WAITS_SCHEMA: Final = _schema(topic=_TEXT, wait_ms=_INT, last_replica_id=_ID, operations=_INT, held_back_ms=_INT)
RUNS_SCHEMA: Final = _schema(
    run_id=_TEXT, started_at=_INSTANT, life_ms=_INT, load=_FLOAT, delay_factor=_FLOAT, operations=_INT, seconds=_FLOAT
)
_PARTITION: Final = {"run_id": _TEXT, "topic": _TEXT, "partition": _ID}
CHANGES_SCHEMA: Final = _schema(
    **_PARTITION, from_replica_id=_ID, to_replica_id=_ID, resigned_at=_INSTANT, elected_at=_INSTANT
)
ABSENCES_SCHEMA: Final = _schema(
    **_PARTITION, replica_id=_ID, away_at=_INSTANT, left_at=_INSTANT, returned_at=_INSTANT, joined_at=_INSTANT
)


class TruthSummary:
    """Adds runs one at a time. What it holds does not grow with their number, but for a row for each."""

    def __init__(self, plan: HistoryPlan) -> None:
        self._plan: Final = plan
        self._totals: Final[Counter[str]] = Counter()
        self._rows: Final[Counter[str]] = Counter()
        self._outcomes: Final[dict[str, Counter[str]]] = defaultdict(Counter)
        self._produces: Final[dict[str, Counter[str]]] = defaultdict(Counter)
        self._partitions: Final[Counter[str]] = Counter()
        self._keys: Final[Counter[str]] = Counter()
        self._waits: Final[dict[tuple[str, int, int], list[int]]] = {}
        self._runs: Final[list[dict[str, Any]]] = []
        self._changes: Final[list[dict[str, Any]]] = []
        self._absences: Final[list[dict[str, Any]]] = []

    def add(self, run: dict[str, Any]) -> None:
        """Adds one run's truth, as it was written."""
        for name in ("operations", "files", "bytes", "without_wait"):
            self._totals[name] += run[name]
        self._totals["runs"] += 1
        self._rows.update(run["rows"])
        self._partitions.update(run["partitions"])
        self._keys.update(run["keys"])
        for totals, part in ((self._outcomes, run["outcomes"]), (self._produces, run["produce_outcomes"])):
            for name, counts in part.items():
                totals[name].update(counts)
        columns = [run["waits"][name] for name in WAITS_SCHEMA.names]
        for topic, wait_ms, last, operations, held_ms in zip(*columns, strict=True):
            row = self._waits.setdefault((topic, wait_ms, last), [0, 0])
            row[0] += operations
            row[1] += held_ms
        self._runs.append(_row(run, RUNS_SCHEMA))
        self._changes.extend(
            _row(change | {"run_id": run["run_id"]}, CHANGES_SCHEMA) for change in run["leader_changes"]
        )
        self._absences.extend(_row(absence | {"run_id": run["run_id"]}, ABSENCES_SCHEMA) for absence in run["absences"])

    def tables(self) -> dict[str, pa.Table]:
        """What is too long for the JSON, by file name."""
        waits = [
            dict(zip(WAITS_SCHEMA.names, (topic, wait_ms, None if last == BOTH else last, *sums), strict=True))
            for (topic, wait_ms, last), sums in sorted(self._waits.items())
        ]
        return {
            "produce_waits": pa.Table.from_pylist(waits, WAITS_SCHEMA),
            "runs": pa.Table.from_pylist(self._runs, RUNS_SCHEMA),
            "leader_changes": pa.Table.from_pylist(self._changes, CHANGES_SCHEMA),
            "absences": pa.Table.from_pylist(self._absences, ABSENCES_SCHEMA),
        }

    def to_json(self) -> dict[str, Any]:
        plan = asdict(self._plan)
        planted = {name: plan.pop(name) for name in ("slow_replica", "incident", "topics")}
        return {
            "plan": plan,
            "planted": planted | {"replica_ids": list(range(1, BROKERS + 1)), "swing_of_load": SWING},
            "totals": dict(self._totals) | {"rows": dict(self._rows)},
            "outcomes": {kind: dict(counts) for kind, counts in sorted(self._outcomes.items())},
            "produce_outcomes": {topic: dict(counts) for topic, counts in sorted(self._produces.items())},
            "produce_waits_without_timeout": self._quantiles(),
            "stragglers": self._stragglers(),
            "hot_partitions": dict(self._partitions.most_common(HOTTEST)),
            "hot_keys": dict(self._keys.most_common(HOTTEST)),
        }

    def _quantiles(self) -> dict[str, dict[str, int]]:
        """By topic and over all (`""`): the wait that this share of produces needed at most."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for (topic, wait_ms, _), (operations, _) in self._waits.items():
            counts[topic][wait_ms] += operations
            counts[""][wait_ms] += operations
        found: dict[str, dict[str, int]] = {}
        for topic, by_wait in sorted(counts.items()):
            waits = sorted(by_wait)
            reached = np.cumsum([by_wait[wait_ms] for wait_ms in waits])
            needed = {
                name: waits[int(np.searchsorted(reached, np.ceil(quantile * reached[-1])))]
                for name, quantile in QUANTILES.items()
            }
            found[topic] = {"operations": int(reached[-1])} | needed | {"max": waits[-1]}
        return found

    def _stragglers(self) -> list[dict[str, int]]:
        """Replicas by how long they held produces back, the worst first."""
        totals: dict[int, list[int]] = {}
        for (_, _, last), (operations, held_ms) in self._waits.items():
            row = totals.setdefault(last, [0, 0])
            row[0] += operations
            row[1] += held_ms
        worst = sorted(totals.items(), key=lambda entry: -entry[1][1])
        return [
            {"replica_id": last, "operations": operations, "held_back_ms": held_ms}
            for last, (operations, held_ms) in worst
            if last != BOTH
        ]


def summarize(plan: HistoryPlan, out: str) -> dict[str, Any]:
    """Reads the runs' truths one after the other, writes that of the whole, and returns the content of `truth.json`."""
    filesystem, root = open_archive(out)
    summary = TruthSummary(plan)
    for index in range(plan.runs):
        with filesystem.open_input_stream(f"{root}/{RUNS}/{plan.run(index).run_id}.json") as stream:
            summary.add(json.loads(stream.read()))
    for name, table in summary.tables().items():
        _write_table(filesystem, f"{root}/{TRUTH}/{name}.parquet", table)
    text = json.dumps(summary.to_json(), indent=1)
    write_text(filesystem, f"{root}/{TRUTH}", "truth.json", text)
    whole: dict[str, Any] = json.loads(text)
    return whole


def _row(values: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """The columns of a table; instants are named `..._ms` while they are numbers."""
    return {name: values[name] if name in values else values[f"{name}_ms"] for name in schema.names}


def _write_table(filesystem: fs.FileSystem, path: str, table: pa.Table) -> None:
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(table, stream)
