"""Sums over replayed operations: how many ended how, recorded and replayed, and how long they waited."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory_pipeline.engine_rows.row_chunk import Column
from purgatory_pipeline.replay.open_operations import OpenOperations, Outcomes

# Verdicts on an operation.
EQUAL: Final = 0
"""The replay ended it as recorded. Under a policy: with the same outcome and after the same wait as unchanged."""
DIFFERENT: Final = 1
NO_OUTCOME: Final = 2
"""It had not ended when its history did."""
IN_DOUBT: Final = 3
"""It ended after rows of its run were lost, so a replay cannot know everything it depended on."""

COUNTER: Final = -1
"""`player` of a row that has a counter of the replay."""

SCHEMA: Final = pa.schema(
    [
        ("player", pa.int32()),
        ("kind", pa.int32()),
        ("topic", pa.string()),
        ("before", pa.int32()),  # recorded outcome; under a policy, the one of the unchanged replay
        ("replayed", pa.int32()),  # outcome in the replay
        ("verdict", pa.int32()),
        ("waited_ms", pa.int64()),  # in the replay, see `rounded`
        ("name", pa.string()),  # of a counter
        ("operations", pa.int64()),
    ]
)
"""One row for each sum. Rows with equal keys may be added up."""
KEYS: Final = SCHEMA.names[:-1]


def added(rows: pa.Table) -> pa.Table:
    """Adds up rows with equal keys."""
    summed = rows.group_by(KEYS, use_threads=False).aggregate([("operations", "sum")])
    return summed.rename_columns([*KEYS, "operations"])


def rounded(waited_ms: Column) -> Column:
    """Waits with three significant digits, so that a sum has few: exact up to a second, within 0.5 % beyond."""
    digits = np.log10(np.maximum(waited_ms, 1)).astype(np.int64)
    step = 10 ** np.maximum(digits - 2, 0)
    found: Column = (np.maximum(waited_ms, 0) + step // 2) // step * step
    return found


_OF_OPERATIONS: Final = ["kind", "topic", "before", "replayed", "verdict", "waited_ms"]
_PARTS_ROWS_MAX: Final = 1_000_000


class ReplaySums:
    """The sums of one task. `topics` numbers its topics from 1."""

    def __init__(self) -> None:
        self.topics: Final[dict[str, int]] = {}
        self.counts: Final[Counter[str]] = Counter()
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, finished: OpenOperations, before: Sequence[Outcomes], verdicts: Sequence[Column]) -> None:
        """Adds operations that have ended everywhere: for each policy what it is compared with, and the verdicts."""
        topics = pa.array(["", *self.topics])
        for player, (outcomes, was, verdict) in enumerate(zip(finished.replayed, before, verdicts, strict=True)):
            waited_ms = rounded(outcomes["waited_ms"])
            columns = [finished["kind"], finished["topic"], was["outcome"], outcomes["outcome"], verdict, waited_ms]
            rows = pa.table(columns, _OF_OPERATIONS).group_by(_OF_OPERATIONS, use_threads=False)
            sums = rows.aggregate([([], "count_all")]).rename_columns([*_OF_OPERATIONS, "operations"])
            sums = sums.set_column(1, "topic", topics.take(sums["topic"]))
            same = {"player": pa.repeat(player, len(sums)), "name": pa.repeat("", len(sums))}
            whole = dict(zip(sums.column_names, sums.columns, strict=True)) | same
            self._parts.append(pa.table(whole).select(SCHEMA.names).cast(SCHEMA))
            self._rows += len(sums)
        if self._rows > _PARTS_ROWS_MAX and len(self._parts) > 1:
            self._parts = [added(pa.concat_tables(self._parts))]
            self._rows = len(self._parts[0])

    def table(self) -> pa.Table:
        nothing = dict.fromkeys(SCHEMA.names, 0) | {"player": COUNTER, "topic": ""}
        counted = [
            {**nothing, "name": name, "operations": count} for name, count in sorted(self.counts.items()) if count
        ]
        return added(pa.concat_tables([*self._parts, pa.Table.from_pylist(counted, SCHEMA)]))
