"""Finds out when the marks of expired waits were reached after all, so that it is known what more time would have done.

Only waits for marks and signals are looked up: produce, delete_records, and signal with one key. Marks are shown by
pushed high watermarks and by signals. A satisfied wait shows that the mark moved, in that call, from below what it
required to what it reached. It is not known what would have become of the other waits: nothing reached their mark in
this run, it passed them unseen, or the partition changed its leader, was truncated or removed in between.
"""

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame

from purgatory.engine import codes
from purgatory_pipeline.report.estimates import MILLION, quantiles
from purgatory_pipeline.report.facts import EXPIRED, queried
from purgatory_pipeline.report.report_tables import TABLES

LOOKED_UP: Final = tuple(codes.KIND_NAMES[kind] for kind in (codes.PRODUCE, codes.DELETE_RECORDS, codes.SIGNAL))
"""The kinds of which all expired waits are in `near_misses`, reached or not."""

REACHED: Final = "reached"
"""The fate of an expired wait whose mark was reached later."""

LATE: Final = {"late_p50_ms": 500_000, "late_p90_ms": 900_000, "late_p99_ms": 990_000, "late_max_ms": MILLION}


def near_misses(outcomes: DataFrame, events: DataFrame) -> DataFrame:
    """A row for each expired operation of the kinds LOOKED_UP: run, topic, kind, `timeout_ms` and `fate`.

    If it was REACHED, `call_number` is the call that reached its last mark, and `waited_ms` how long it would have
    waited, more than its timeout; otherwise both are those of its expiry, and the fate is EXPIRED.
    """
    return queried("near_misses", outcomes=outcomes, events=events)


def near_miss_table(counts: pd.DataFrame) -> pa.Table:
    """Makes the table `near_misses` from `advice.waited_counts`."""
    own = counts[counts["fate"].isin([EXPIRED, REACHED]) & counts["kind"].isin(LOOKED_UP)]
    both = pd.concat([own.assign(topic=None), own.dropna(subset=["topic"])], ignore_index=True)
    both = both.assign(reached=both["operations"].where(both["fate"] == REACHED, 0))
    curves = both.groupby(["topic", "kind"], dropna=False)
    rows = curves[["operations", "reached"]].sum().reset_index().rename(columns={"operations": "expired"})
    is_reached = both["fate"] == REACHED
    late_ms, weights = (
        values[is_reached].to_numpy(np.int64) for values in (both["waited_ms"] - both["timeout_ms"], both["operations"])
    )
    late = quantiles(curves.ngroup()[is_reached].to_numpy(), late_ms, weights, len(rows), LATE)
    known = {name: pd.Series(values).where(rows["reached"] > 0).astype("Int64") for name, values in late.items()}
    share = rows["reached"] / rows["expired"]
    return pa.Table.from_pandas(
        rows.assign(**known, reached_share=share), TABLES["near_misses"].schema, preserve_index=False
    )
