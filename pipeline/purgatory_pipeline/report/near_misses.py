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
from purgatory_pipeline.report.facts import EXPIRED
from purgatory_pipeline.report.report_tables import NEAR_MISSES

LOOKED_UP: Final = tuple(codes.KIND_NAMES[kind] for kind in (codes.PRODUCE, codes.DELETE_RECORDS, codes.SIGNAL))
"""The kinds of which all expired waits are in `near_misses`, reached or not."""

REACHED: Final = "reached"
"""The fate of an expired wait whose mark was reached later."""

LATE: Final = {"late_p50_ms": 500_000, "late_p90_ms": 900_000, "late_p99_ms": 990_000, "late_max_ms": MILLION}

_WAITS: Final = """SELECT *, waited_ms - lateness_ms AS timeout_ms FROM {outcomes}
    WHERE outcome = 'expired' AND kind IN ('produce', 'delete_records', 'signal')"""

# A step is a wait, a mark that was seen, or a break after which marks begin again. Before its call, a mark was below
# `above`: it may have passed lower offsets earlier. A key is at the number of its signals; a wait for a key is for that
# number and the signals that it lacks. `first` is the first step that shows the mark of a wait.
_QUERY: Final = """
WITH applied AS (
    SELECT *, if(type = 'key_signalled', 'signal', 'produce') AS kind,
        type NOT IN ('high_watermark', 'key_signalled') OR (type = 'key_signalled' AND flags <> 0) AS is_break
    FROM {events} WHERE refusal_code = 0
        AND type IN ('high_watermark', 'key_signalled', 'leadership', 'truncation', 'partition_removed')
), moves AS (
    SELECT run_id, topic, partition, kind, call_number, time_ms, if(kind = 'signal' OR is_break, 0, offset) AS mark,
        0L AS above, if(kind = 'signal', offset, 0) AS signals, is_break FROM applied
    UNION ALL SELECT run_id, topic, partition, kind, call_number, time_ms, reached_offset, required_offset, 0, false
    FROM {outcomes} WHERE outcome = 'satisfied' AND kind IN ('produce', 'delete_records') AND waited_ms > 0
), steps AS (
    SELECT *, NULL AS wait FROM moves LEFT SEMI JOIN {waits} USING (run_id, topic, partition, kind)
    UNION ALL SELECT run_id, topic, partition, kind, call_number, time_ms,
        if(kind = 'signal', required_offset - reached_offset, required_offset), 0, 0, false,
        struct(item, session_number, operation_id, topic, kind, call_number, waited_ms, timeout_ms,
            time_ms - waited_ms AS began_ms, error_code = 0 AS is_resolved,
            kind <> 'signal' OR item_count = 1 AS is_shown)
    FROM {waits}
), counted AS (
    SELECT * EXCEPT (mark), mark + sum(signals) OVER (
        PARTITION BY run_id, topic, partition, kind ORDER BY call_number, wait IS NOT NULL) AS mark FROM steps
), placed AS (
    SELECT *, min(if(is_break, call_number, NULL)) OVER (
            PARTITION BY run_id, topic, partition, kind ORDER BY call_number DESC) AS break_call,
        min(if(wait IS NULL AND NOT is_break, struct(call_number, time_ms, above), NULL)) OVER (
            PARTITION BY run_id, topic, partition, kind ORDER BY mark DESC) AS first FROM counted
), operations AS (
    SELECT run_id, min(wait) AS own, min(wait.began_ms) AS began_ms, max(if(wait.is_resolved, NULL, first)) AS last,
        bool_and(wait.is_resolved OR coalesce(wait.is_shown AND first.call_number > call_number AND mark >= first.above
            AND (break_call IS NULL OR break_call > first.call_number), false)) AS is_reached
    FROM placed WHERE wait IS NOT NULL GROUP BY run_id, wait.session_number, wait.operation_id
), known AS (SELECT *, is_reached AND last IS NOT NULL AS is_known FROM operations)
SELECT run_id, own.topic, own.kind, own.timeout_ms, if(is_known, 'reached', 'expired') AS fate,
    if(is_known, last.call_number, own.call_number) AS call_number,
    if(is_known, greatest(last.time_ms - began_ms, own.timeout_ms + 1), own.waited_ms) AS waited_ms
FROM known"""


def near_misses(outcomes: DataFrame, events: DataFrame) -> DataFrame:
    """A row for each expired operation of the kinds LOOKED_UP: run, topic, kind, `timeout_ms` and `fate`.

    If it was REACHED, `call_number` is the call that reached its last mark, and `waited_ms` how long it would have
    waited, more than its timeout; otherwise both are those of its expiry, and the fate is EXPIRED.
    """
    spark = outcomes.sparkSession
    return spark.sql(_QUERY, waits=spark.sql(_WAITS, outcomes=outcomes), outcomes=outcomes, events=events)


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
    return pa.Table.from_pandas(rows.assign(**known, reached_share=share), NEAR_MISSES.schema, preserve_index=False)
