"""Sums over replayed operations: how many ended how, recorded and replayed, and how long they waited.

Waits are counted in buckets: exact below EXACT_MS, then PER_OCTAVE for each doubling. So sums can be added up in any
order, and a quantile is right to less than one percent.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory_pipeline.engine_rows.row_chunk import Column
from purgatory_pipeline.replay.open_operations import OpenOperations, Outcomes

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
"""The replay ended it as recorded. Under a policy: with the same outcome and after the same wait as unchanged."""
DIFFERENT: Final = 1
NO_OUTCOME: Final = 2
"""It had not ended when its history did."""
IN_DOUBT: Final = 3
"""It ended after rows of its run were lost, so a replay cannot know everything it depended on."""

SCHEMA: Final = pa.schema(
    [
        ("section", pa.int32()),
        ("player", pa.int32()),
        ("kind", pa.int32()),
        ("topic", pa.string()),
        ("before", pa.int32()),  # recorded outcome; under a policy, the one of the unchanged replay
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


_SHAPE: Final = {"section": 1, "player": 10, "kind": 3, "before": 3, "replayed": 3, "detail": 16, "topic": 27}
"""Fields of a packed key, and their bits: Arrow adds up by one number several times faster than by seven columns."""
_PARTS_ROWS_MAX: Final = 1_000_000


class ReplaySums:
    """The sums of one task. `topics` numbers its topics from 1."""

    def __init__(self) -> None:
        self.topics: Final[dict[str, int]] = {}
        self.counts: Final[Counter[str]] = Counter()
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, finished: OpenOperations, before: Sequence[Outcomes], verdicts: Sequence[Column]) -> None:
        """Adds operations that have ended everywhere: for each policy what it is compared with, and the verdicts.

        Operations in doubt have no waits: no line of a table counts them as ended.
        """
        kind, topic = finished["kind"], finished["topic"]
        sure = verdicts[0] != IN_DOUBT
        for player, (outcomes, was, verdict) in enumerate(zip(finished.replayed, before, verdicts, strict=True)):
            columns = (kind, was.outcome, outcomes.outcome, verdict, topic)
            self._add(_packed(CHANGES, player, *columns), outcomes.waited_ms)
            ended = (kind, outcomes.outcome, outcomes.outcome, bucket_of(outcomes.waited_ms), topic)
            self._add(_packed(WAITS, player, *(column[sure] for column in ended)), outcomes.waited_ms[sure])

    def table(self) -> pa.Table:
        if not self._parts:
            summed = pa.table({name: np.empty(0, np.int64) for name in ("key", "count", "total")})
        else:
            summed = _added_by_key(pa.concat_tables(self._parts)).sort_by("key")
        columns = _unpacked(summed["key"].to_numpy())
        columns["topic"] = np.array(["", *self.topics], object)[columns["topic"]]
        columns["name"] = np.full(len(summed), "", object)
        columns |= {"operations": summed["count"].to_numpy(), "waited_ms": summed["total"].to_numpy()}
        sums = pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)
        nothing = {name: "" if name == "topic" else 0 for name in SCHEMA.names}
        nothing |= {"section": COUNTS}
        counted = [
            {**nothing, "name": name, "operations": count} for name, count in sorted(self.counts.items()) if count
        ]
        return pa.concat_tables([sums, pa.Table.from_pylist(counted, SCHEMA)])

    def _add(self, keys: Column, waited_ms: Column) -> None:
        rows = pa.table({"key": keys, "count": np.ones(len(keys), np.int64), "total": waited_ms})
        self._parts.append(_added_by_key(rows))
        self._rows += len(self._parts[-1])
        if self._rows > _PARTS_ROWS_MAX and len(self._parts) > 1:
            self._parts = [_added_by_key(pa.concat_tables(self._parts))]
            self._rows = len(self._parts[0])


def _added_by_key(rows: pa.Table) -> pa.Table:
    summed = rows.group_by("key", use_threads=False).aggregate([("count", "sum"), ("total", "sum")])
    return summed.rename_columns({"count_sum": "count", "total_sum": "total"})


def _packed(section: int, player: int, *columns: Column) -> Column:
    key: Column = np.full(len(columns[0]), section << _SHAPE["player"] | player, np.int64)
    for bits, values in zip([*_SHAPE.values()][2:], columns, strict=True):
        key = (key << bits) | values
    return key


def _unpacked(keys: Column) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name, bits in reversed(_SHAPE.items()):
        found[name] = keys & ((1 << bits) - 1)
        keys = keys >> bits
    return found
