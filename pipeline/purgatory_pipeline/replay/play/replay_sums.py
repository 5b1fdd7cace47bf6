"""Sums over replayed operations: how many ended how, recorded and replayed, and how long they waited.

Waits are counted in buckets: exact below EXACT_MS, then PER_OCTAVE for each doubling. So sums can be added up in any
order, and a quantile is right to less than one percent.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory_pipeline.replay.load.row_chunk import Column

EXACT_MS: Final = 1_024
PER_OCTAVE: Final = 128
_EXACT_BITS: Final = 11
"""Bits of EXACT_MS."""
_MANTISSA_BITS: Final = 8

# Sections of the sums.
CHANGES: Final = 0
WAITS: Final = 1
COUNTS: Final = 2

# Verdicts on an operation.
EQUAL: Final = 0
"""The replay ended it as recorded. Under a changed policy: the same outcome after the same wait."""
DIFFERENT: Final = 1
NO_OUTCOME: Final = 2
"""It had not ended when its history did."""
IN_DOUBT: Final = 3
"""It ended after rows of its run were lost, so a replay cannot know everything it depended on."""

RECORDED: Final = -1
"""The player whose waits are the recorded ones."""

SCHEMA: Final = pa.schema(
    [
        ("section", pa.int32()),
        ("player", pa.int32()),
        ("kind", pa.int32()),
        ("topic", pa.string()),
        ("recorded", pa.int32()),  # recorded outcome
        ("replayed", pa.int32()),  # outcome in the replay; of a wait, how it ended
        ("detail", pa.int32()),  # verdict; of a wait, its bucket
        ("name", pa.string()),  # of a count
        ("operations", pa.int64()),
        ("waited_ms", pa.int64()),
    ]
)
"""One row for each sum. Rows with equal keys may be added up."""

KEYS: Final = [name for name in SCHEMA.names if name not in ("operations", "waited_ms")]


def added(parts: Sequence[pa.Table]) -> pa.Table:
    """The sums of several parts, at least one, as those of the whole."""
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_tables(parts).group_by(KEYS, use_threads=False)
    summed = rows.aggregate([("operations", "sum"), ("waited_ms", "sum")])
    names = {"operations_sum": "operations", "waited_ms_sum": "waited_ms"}
    return summed.rename_columns(names).select(SCHEMA.names)


def bucket_of(waited_ms: Column) -> Column:
    values = np.maximum(waited_ms, 0).astype(np.int64)
    _, bits = np.frexp(values.astype(np.float64))
    shift = np.maximum(bits.astype(np.int64) - _MANTISSA_BITS, 0)
    coarse = EXACT_MS + (shift - (_EXACT_BITS - _MANTISSA_BITS)) * PER_OCTAVE + (values >> shift) - PER_OCTAVE
    return np.where(values < EXACT_MS, values, coarse)


def middle_of(buckets: Column) -> Column:
    """The middle of each bucket, in milliseconds."""
    place = np.maximum(buckets - EXACT_MS, 0)
    shift = place // PER_OCTAVE + _EXACT_BITS - _MANTISSA_BITS
    low = (place % PER_OCTAVE + PER_OCTAVE) << shift
    return np.where(buckets < EXACT_MS, buckets, low + ((1 << shift) - 1) / 2)


@dataclass(frozen=True)
class FinishedOperations:
    """Operations that have ended everywhere: columns, and for each player how they ended there."""

    kind: Column
    topic: Column
    recorded: Column
    recorded_waited: Column
    outcomes: list[Column]
    waited: list[Column]
    verdicts: list[Column]


class _KeyedSums:
    """Counts and totals by a packed key."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, keys: Column, values: Column) -> None:
        self._add(pa.table({"key": keys, "count": np.ones(len(keys), np.int64), "total": values}))
        if self._rows > 1_000_000 and len(self._parts) > 1:
            self.take()

    def take(self) -> tuple[Column, Column, Column]:
        """Keys in rising order, with counts and totals; they stay."""
        if not self._parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        parts, self._parts, self._rows = self._parts, [], 0
        self._add(pa.concat_tables(parts))
        summed = self._parts[0].sort_by("key")
        return summed["key"].to_numpy(), summed["count"].to_numpy(), summed["total"].to_numpy()

    def _add(self, rows: pa.Table) -> None:
        summed = rows.group_by("key", use_threads=False).aggregate([("count", "sum"), ("total", "sum")])
        self._parts.append(summed.rename_columns({"count_sum": "count", "total_sum": "total"}))
        self._rows += len(summed)


_SHAPE: Final = {"player": 10, "kind": 3, "recorded": 3, "replayed": 3, "detail": 16, "topic": 28}
"""Fields of a packed key, and their bits."""


class ReplaySums:
    """The sums of one task. `topics` numbers its topics from 1."""

    def __init__(self) -> None:
        self.topics: Final[dict[str, int]] = {}
        self.counts: Final[Counter[str]] = Counter()
        self._changes: Final = _KeyedSums()
        self._waits: Final = _KeyedSums()

    def add(self, ended: FinishedOperations) -> None:
        self._waits.add(
            _key(RECORDED, ended.kind, ended.recorded, ended.recorded, bucket_of(ended.recorded_waited), ended.topic),
            ended.recorded_waited,
        )
        for player, outcomes in enumerate(ended.outcomes):
            waited = ended.waited[player]
            self._changes.add(
                _key(player, ended.kind, ended.recorded, outcomes, ended.verdicts[player], ended.topic), waited
            )
            self._waits.add(_key(player, ended.kind, outcomes, outcomes, bucket_of(waited), ended.topic), waited)

    def batch(self) -> pa.RecordBatch:
        """All sums as rows of SCHEMA."""
        topics = ["", *self.topics]
        columns: dict[str, list[Column]] = {name: [] for name in SCHEMA.names}
        for section, sums in ((CHANGES, self._changes), (WAITS, self._waits)):
            keys, counts, totals = sums.take()
            fields = _fields(keys)
            fields["player"] = fields["player"] - 1
            fields["topic"] = np.array(topics, object)[fields["topic"]]
            fields |= {"operations": counts, "waited_ms": totals}
            fields |= {"section": np.full(len(keys), section), "name": np.full(len(keys), "", object)}
            for name in SCHEMA.names:
                columns[name].append(fields[name])
        names = sorted(name for name, count in self.counts.items() if count)
        for name in SCHEMA.names:
            own = {"section": COUNTS, "topic": "", "player": RECORDED}.get(name, 0)
            columns[name].append(np.full(len(names), own, object if name in ("topic", "name") else np.int64))
        columns["name"][-1] = np.array(names, object)
        columns["operations"][-1] = np.array([self.counts[name] for name in names], np.int64)
        arrays = [pa.array(np.concatenate(columns[field.name]), field.type) for field in SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _key(player: int, kind: Column, recorded: Column, replayed: Column, detail: Column, topic: Column) -> Column:
    """Packs the fields into one number."""
    key: Column = np.full(len(kind), player + 1, np.int64)
    for name, values in (
        ("kind", kind), ("recorded", recorded), ("replayed", replayed), ("detail", detail), ("topic", topic),
    ):  # fmt: skip
        key = (key << _SHAPE[name]) | values
    return key


def _fields(keys: Column) -> dict[str, Column]:
    """Unpacks keys."""
    found: dict[str, Column] = {}
    for name, bits in reversed(_SHAPE.items()):
        found[name] = keys & ((1 << bits) - 1)
        keys = keys >> bits
    return found
