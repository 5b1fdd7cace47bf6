"""The truth of a whole history, summed up from its runs: what was planted, what came out, and exact quantiles."""

import json
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.archive.files import open_archive
from purgatory_pipeline.generate.history_plan import BROKERS, SWING, HistoryPlan
from purgatory_pipeline.generate.make_archive import RUNS, TRUTH, write_text
from purgatory_pipeline.generate.truth import BOTH, Truth

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
HOTTEST: Final = 20

_TEXT, _FLOAT, _INSTANT = pa.string(), pa.float64(), pa.timestamp("ms", tz="UTC")
_INT, _ID = pa.int64(), pa.int32()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


WAITED_BY: Final = ["topic", "wait_ms", "last_replica_id"]
_PARTITION: Final = {"run_id": _TEXT, "topic": _TEXT, "partition": _ID}
# Null: `last_replica_id` where both followers were last or nobody waited, `joined_at` if that was after the run.
SCHEMAS: Final = {
    "produce_waits": _schema(topic=_TEXT, wait_ms=_INT, last_replica_id=_ID, operations=_INT, held_back_ms=_INT),
    "runs": _schema(
        run_id=_TEXT, started_at=_INSTANT, life_ms=_INT, load=_FLOAT, delay_factor=_FLOAT, operations=_INT,
        seconds=_FLOAT,
    ),
    "leader_changes": _schema(
        **_PARTITION, from_replica_id=_ID, to_replica_id=_ID, resigned_at=_INSTANT, elected_at=_INSTANT
    ),
    "absences": _schema(
        **_PARTITION, replica_id=_ID, away_at=_INSTANT, left_at=_INSTANT, returned_at=_INSTANT, joined_at=_INSTANT
    ),
}  # fmt: skip
"""Tables that are too long for the JSON, by file name."""


class TruthSummary:
    """Adds runs one at a time. What it holds does not grow with their number, but for a few rows for each."""

    def __init__(self, plan: HistoryPlan) -> None:
        self._plan: Final = plan
        self._totals: Final[Counter[str]] = Counter()
        self._counts: Final[dict[str, Counter[str]]] = {name: Counter() for name in ("rows", "partitions", "keys")}
        self._outcomes: Final[dict[str, dict[str, Counter[str]]]] = {
            name: defaultdict(Counter) for name in ("outcomes", "produce_outcomes")
        }
        self._waits = pd.DataFrame()
        self._rows: Final[dict[str, list[dict[str, Any]]]] = {name: [] for name in list(SCHEMAS)[1:]}

    def add(self, run: Truth) -> None:
        """Adds one run's truth, as it was written."""
        self._totals.update({name: run[name] for name in ("operations", "files", "bytes", "without_wait")}, runs=1)
        for name, counts in self._counts.items():
            counts.update(run[name])
        for name, totals in self._outcomes.items():
            for key, counted in run[name].items():
                totals[key].update(counted)
        both = [frame for frame in (self._waits, pd.DataFrame(run["waits"])) if len(frame)]
        if both:
            self._waits = pd.concat(both).groupby(WAITED_BY, as_index=False).sum()
        for name, rows in self._rows.items():
            values = [run] if name == "runs" else [row | {"run_id": run["run_id"]} for row in run[name]]
            rows += [_row(row, SCHEMAS[name]) for row in values]

    def tables(self) -> dict[str, pa.Table]:
        waits = self._waits.replace({"last_replica_id": {BOTH: None}}).to_dict("list")
        rows = {name: pa.Table.from_pylist(rows, SCHEMAS[name]) for name, rows in self._rows.items()}
        return {"produce_waits": pa.Table.from_pydict(waits, SCHEMAS["produce_waits"]), **rows}

    def to_json(self) -> dict[str, Any]:
        plan = asdict(self._plan)
        planted = {name: plan.pop(name) for name in ("slow_replica", "incident", "topics")}
        return {
            "plan": plan,
            "planted": planted | {"replica_ids": list(range(1, BROKERS + 1)), "swing_of_load": SWING},
            "totals": self._totals | {"rows": self._counts["rows"]},
            **{name: dict(sorted(counts.items())) for name, counts in self._outcomes.items()},
            "produce_waits_without_timeout": self._quantiles(),
            "stragglers": self._stragglers(),
            "hot_partitions": dict(self._counts["partitions"].most_common(HOTTEST)),
            "hot_keys": dict(self._counts["keys"].most_common(HOTTEST)),
        }

    def _quantiles(self) -> dict[str, dict[str, int]]:
        """By topic and over all (`""`): the wait that this share of produces needed at most."""
        found = {}
        for topic, waits in pd.concat([self._waits.assign(topic=""), self._waits]).groupby("topic"):
            reached = waits.groupby("wait_ms")["operations"].sum().cumsum()
            wanted = np.ceil(np.array([*QUANTILES.values(), 1]) * reached.iloc[-1])
            needed = reached.index[np.searchsorted(reached, wanted)].tolist()
            counted = {"operations": int(reached.iloc[-1])}
            found[str(topic)] = counted | dict(zip((*QUANTILES, "max"), needed, strict=True))
        return found

    def _stragglers(self) -> list[dict[str, int]]:
        """Replicas by how long they held produces back, the worst first."""
        known = self._waits[self._waits["last_replica_id"] != BOTH].rename(columns={"last_replica_id": "replica_id"})
        totals = known.groupby("replica_id", as_index=False)[["operations", "held_back_ms"]].sum()
        worst: list[dict[str, int]] = totals.sort_values("held_back_ms", ascending=False, kind="stable").to_dict(
            "records"
        )
        return worst


def summarize(plan: HistoryPlan, out: str) -> dict[str, Any]:
    """Reads the runs' truths one after the other, writes that of the whole, and returns the content of `truth.json`."""
    filesystem, root = open_archive(out)
    summary = TruthSummary(plan)
    for index in range(plan.runs):
        with filesystem.open_input_stream(f"{root}/{RUNS}/{plan.run(index).run_id}.json") as stream:
            summary.add(json.loads(stream.read()))
    for name, table in summary.tables().items():
        with filesystem.open_output_stream(f"{root}/{TRUTH}/{name}.parquet") as stream:
            pq.write_table(table, stream)
    text = json.dumps(summary.to_json(), indent=1)
    write_text(filesystem, f"{root}/{TRUTH}", "truth.json", text)
    whole: dict[str, Any] = json.loads(text)
    return whole


def _row(values: Truth, schema: pa.Schema) -> dict[str, Any]:
    """The columns of a table; instants are named `..._ms` while they are numbers."""
    return {name: values[name] if name in values else values[f"{name}_ms"] for name in schema.names}
