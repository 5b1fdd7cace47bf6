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

SUMMED: Final = ("operations", "waited_ms")
KEYS: Final = [name for name in SCHEMA.names if name not in SUMMED]


def added(rows: pa.Table) -> pa.Table:
    """Adds up rows with equal keys."""
    summed = rows.group_by(KEYS, use_threads=False).aggregate([(name, "sum") for name in SUMMED])
    return summed.rename_columns([*KEYS, *SUMMED]).select(SCHEMA.names)


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


_OF_OPERATIONS: Final = ["kind", "topic", "before", "replayed", "detail"]
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
            columns = {"kind": kind, "topic": topic, "replayed": outcomes.outcome, "waited_ms": outcomes.waited_ms}
            self._add(CHANGES, player, columns | {"before": was.outcome, "detail": verdict})
            ended = columns | {"before": outcomes.outcome, "detail": bucket_of(outcomes.waited_ms)}
            self._add(WAITS, player, {name: values[sure] for name, values in ended.items()})

    def table(self) -> pa.Table:
        nothing = dict.fromkeys(SCHEMA.names, 0) | {"section": COUNTS, "topic": ""}
        counted = [
            {**nothing, "name": name, "operations": count} for name, count in sorted(self.counts.items()) if count
        ]
        return added(pa.concat_tables([*self._parts, pa.Table.from_pylist(counted, SCHEMA)]))

    def _add(self, section: int, player: int, columns: dict[str, Column]) -> None:
        rows = pa.table(columns).group_by(_OF_OPERATIONS, use_threads=False)
        sums = rows.aggregate([([], "count_all"), ("waited_ms", "sum")]).rename_columns([*_OF_OPERATIONS, *SUMMED])
        same = {"section": section, "player": player, "name": ""}
        whole = dict(zip(sums.column_names, sums.columns, strict=True))
        whole |= {name: pa.repeat(value, len(sums)) for name, value in same.items()}
        whole["topic"] = pa.array(["", *self.topics]).take(sums["topic"])
        self._parts.append(pa.table(whole).select(SCHEMA.names).cast(SCHEMA))
        self._rows += len(sums)
        if self._rows > _PARTS_ROWS_MAX and len(self._parts) > 1:
            self._parts = [added(pa.concat_tables(self._parts))]
            self._rows = len(self._parts[0])
