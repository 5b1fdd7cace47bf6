"""The ground truth of a history, for checking reports.

Of a run: how long each produce would have waited without a timeout, which replica was last (both known without the
engine), and what was counted while it was played. Of the whole, summed up from its runs: what was planted, what came
out, and exact quantiles.
"""

import json
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.archive.files import open_archive
from purgatory.engine.codes import PRODUCE, SIGNAL
from purgatory_pipeline.generate.draw.arrivals import WITHOUT_EPOCHS
from purgatory_pipeline.generate.draw.drawn_run import DrawnRun
from purgatory_pipeline.generate.draw.log_marks import NEVER
from purgatory_pipeline.generate.draw.topology import FOR_EVER_MS, Ints, LeaderChange, Log
from purgatory_pipeline.generate.history_plan import BROKERS, SWING, HistoryPlan

TRUTH: Final = "_truth"
"""Below the archive; readers skip folders that begin with an underscore."""
RUNS: Final = f"{TRUTH}/runs"

BOTH: Final = -1
"""In place of a replica's id: both followers reached the offset in the same millisecond."""

Truth = dict[str, Any]
"""What `run_truth` returns, and JSON holds."""

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


def run_truth(
    run: DrawnRun, tally: Counter[tuple[str, str, str]], rows: Counter[str], files: int, size: int, seconds: float
) -> Truth:
    """The content of a run's file: what was planned, what was planted, and what came out.

    `tally` counts operations by topic or key, kind and outcome; `rows` those of each table.
    """
    operations, wait_ms, last, held_ms = needed_ms(run)
    reached = wait_ms < NEVER
    topic = run.cluster.topic_of[run.arrivals.item_place[run.arrivals.first_item[operations]]]
    outcomes: dict[str, Counter[str]] = {}
    produces: dict[str, dict[str, int]] = {}
    for (name, kind, outcome), count in sorted(tally.items()):
        outcomes.setdefault(kind, Counter())[outcome] += count
        if kind == "produce":
            produces.setdefault(name, {})[outcome] = count
    is_key = run.arrivals.kind[run.arrivals.item_operation] == SIGNAL
    partitions = [f"{name}-{number}" for name, number in run.cluster.names]
    return {
        "run_id": run.plan.run_id,
        "started_at_ms": run.plan.start_ms,
        "life_ms": run.plan.life_ms,
        "load": run.plan.load,
        "delay_factor": run.plan.delay_factor,
        "operations": run.plan.operations,
        "rows": dict(sorted(rows.items())),
        "files": files,
        "bytes": size,
        "seconds": round(seconds, 3),
        "outcomes": outcomes,
        "produce_outcomes": produces,
        "waits": _add_up(run, topic[reached], wait_ms[reached], last[reached], held_ms[reached]),
        # Produces that no replica could ever satisfy: their leader had resigned.
        "without_wait": int(len(wait_ms) - reached.sum()),
        "leader_changes": [_change(run, change) for change in run.changes],
        "absences": [_absence(run, log) for log in run.logs if log.absence is not None],
        # An operation counts once for each partition or key that it names.
        "partitions": _counted(partitions, run.arrivals.item_place[~is_key]),
        "keys": _counted(run.keys, run.arrivals.item_place[is_key]),
    }


def needed_ms(run: DrawnRun) -> tuple[Ints, Ints, Ints, Ints]:
    """For each produce: its operation, how long it needed (NEVER: for ever), which replica was last, and by how much.

    With several partitions, the last one decides.
    """
    arrivals, marks = run.arrivals, run.marks
    operations = np.flatnonzero(arrivals.kind == PRODUCE)
    first = arrivals.first_item[operations]
    counts = arrivals.first_item[operations + 1] - first
    starts = np.cumsum(counts) - counts
    items = np.repeat(first - starts, counts) + np.arange(int(counts.sum()))
    log, offset = arrivals.item_log[items], run.requests.items["offsets"][items]
    reached_ms = marks.high_watermarks.reached(log, offset)
    too_late = arrivals.item_too_late[items]
    reached_ms[too_late] = NEVER
    # A client without epochs is not refused by a new leader: it asks for what is there already.
    elected_ms = np.full(len(run.logs), NEVER)
    elected_ms[[change.old_log for change in run.changes]] = [change.elected_ms for change in run.changes]
    sent_ms = np.repeat(arrivals.time_ms[operations], counts)
    one, other = (
        _counted_until(run, place, log, sent_ms, marks.progress.reached(2 * log + place, offset)) for place in (0, 1)
    )
    unnoticed = too_late & (np.repeat(arrivals.session[operations], counts) == WITHOUT_EPOCHS)
    unnoticed &= sent_ms >= elected_ms[log]
    reached_ms[unnoticed] = sent_ms[unnoticed]
    followers = np.array([entry.followers for entry in run.logs])[log]
    last = np.where(one > other, followers[:, 0], np.where(one < other, followers[:, 1], BOTH))
    decides = _last_of_each(reached_ms, starts, counts)
    registered_ms = arrivals.time_ms[operations]
    wait_ms = np.where(reached_ms[decides] == NEVER, NEVER, np.maximum(0, reached_ms[decides] - registered_ms))
    held_ms = np.minimum(np.abs(one - other)[decides], wait_ms)
    return operations, wait_ms, np.where(wait_ms == 0, BOTH, last[decides]), held_ms


def _counted_until(run: DrawnRun, place: int, log: Ints, sent_ms: Ints, reached_ms: Ints) -> Ints:
    """When a follower no longer held its partition back: it had the offset, or was not in sync (any more)."""
    left_ms = np.full(len(run.logs), FOR_EVER_MS)
    joined_ms = np.full(len(run.logs), FOR_EVER_MS)
    for entry in run.logs:
        if entry.absence is not None and entry.followers[place] == entry.absence.follower:
            left_ms[entry.index], joined_ms[entry.index] = entry.absence.left_ms, run.marks.joined_ms[entry.index]
    until_ms = np.where(sent_ms < joined_ms[log], np.maximum(left_ms[log], sent_ms), FOR_EVER_MS)
    return np.minimum(reached_ms, until_ms)


def _last_of_each(values: Ints, starts: Ints, counts: Ints) -> Ints:
    """The row of the highest value of each group; the first of equals."""
    group = np.repeat(np.arange(len(starts)), counts)
    order = np.lexsort((-np.arange(len(values)), values, group))
    return np.asarray(order[starts + counts - 1])


def _add_up(run: DrawnRun, topic: Ints, wait_ms: Ints, last: Ints, held_ms: Ints) -> dict[str, list[Any]]:
    """Produces by topic, by how long they needed, and by the replica that was last; and by how much that one was later
    than the other, at most since the registration, in total.
    """
    key = (topic * NEVER + wait_ms) * 64 + last + 1
    distinct, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    held = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(held, inverse, np.where(last == BOTH, 0, held_ms))
    return {
        "topic": [run.cluster.topics[place].name for place in topic[first].tolist()],
        "wait_ms": wait_ms[first].tolist(),
        "last_replica_id": last[first].tolist(),
        "operations": counts.tolist(),
        "held_back_ms": held.tolist(),
    }


def _change(run: DrawnRun, change: LeaderChange) -> Truth:
    name, partition = run.cluster.names[change.partition]
    return {
        "topic": name,
        "partition": partition,
        "from_replica_id": run.logs[change.old_log].leader,
        "to_replica_id": run.logs[change.new_log].leader,
        "resigned_at_ms": run.plan.start_ms + change.resigned_ms,
        "elected_at_ms": run.plan.start_ms + change.elected_ms,
    }


def _absence(run: DrawnRun, log: Log) -> Truth:
    absence, joined_ms = log.absence, run.marks.joined_ms[log.index]
    assert absence is not None, f"log {log.index} has no absence"
    name, partition = run.cluster.names[log.partition]
    return {
        "topic": name,
        "partition": partition,
        "replica_id": absence.follower,
        "away_at_ms": run.plan.start_ms + absence.away_ms,
        "left_at_ms": run.plan.start_ms + absence.left_ms,
        "returned_at_ms": run.plan.start_ms + absence.returns_ms,
        "joined_at_ms": None if joined_ms == FOR_EVER_MS else run.plan.start_ms + joined_ms,
    }


def _counted(names: list[str], places: Ints) -> dict[str, int]:
    return dict(zip(names, np.bincount(places, minlength=len(names)).tolist(), strict=True))


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
        return list(totals.sort_values("held_back_ms", ascending=False, kind="stable").to_dict("records"))


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


def write_text(filesystem: fs.FileSystem, folder: str, name: str, text: str) -> None:
    """Writes a small file, whole or not at all."""
    filesystem.create_dir(folder, recursive=True)
    with filesystem.open_output_stream(f"{folder}/.{name}.part") as stream:
        stream.write(text.encode())
    filesystem.move(f"{folder}/.{name}.part", f"{folder}/{name}")
