"""The report's tables as one would write them by hand in DuckDB: its time is held against them, and its tests.

    python -m bench.pipeline.report_sql ARCHIVE DIR    # makes the tables and writes each as Parquet and as CSV

Views lie over the archive's files. Each table has the columns of
`purgatory_pipeline.report.report_tables`; `advice` lacks the
sentence. `account` is what `check` tells of rows, clocks and repeated operations.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import duckdb

from bench.pipeline.report_sql_advice import ADVICE, anomalies

WINDOW_MS: Final = 3_600_000
TABLES: Final = (
    "account", "repeated", "groups", "topics", "windows", "hot_keys", "backlog", "slow_produces", "stragglers",
    "advice", "timeouts", "survival", "anomalies",
)  # fmt: skip
COUNTS: Final = (
    "registered", "refused", "ended", "satisfied", "failed", "expired", "cancelled", "shutting_down", "unfinished",
    "carried_in",
)  # fmt: skip
WAITS: Final = {
    "waited_total_ms": "coalesce(sum(waited_ms_all), 0)::BIGINT",
    "wait_p50_ms": "any_value(waits)[1]",
    "wait_p90_ms": "any_value(waits)[2]",
    "wait_p99_ms": "any_value(waits)[3]",
    "wait_p999_ms": "any_value(waits)[4]",
    "wait_max_ms": "max(longest)",
    "lateness_p50_ms": "any_value(lateness)[1]",
    "lateness_p99_ms": "any_value(lateness)[2]",
    "lateness_max_ms": "any_value(lateness)[3]",
    "completion_rate": "sum(satisfied) / nullif(sum(ended), 0)",
    "expiry_rate": "sum(expired) / nullif(sum(ended), 0)",
}
"""Where a column comes from: at most one of the rows that are put together has it."""


def open_history(archive: Path, threads: int = 2, memory: str = "4GB") -> duckdb.DuckDBPyConnection:
    """A connection whose views are the tables of an archive."""
    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}; SET memory_limit = '{memory}'; SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = false")
    for table in ("registrations", "outcomes", "events"):
        files = f"{archive}/{table}/*/*/*.parquet"
        named = "REPLACE (coalesce(topic, '') AS topic, coalesce(partition, -1) AS partition)"
        columns = f"* {named}" if table == "registrations" else "*"
        connection.execute(
            f"CREATE VIEW {table} AS SELECT {columns} FROM read_parquet('{files}', hive_partitioning = false)"  # noqa: S608
        )
    return connection


def make_tables(connection: duckdb.DuckDBPyConnection, window_ms: int, slow_share: float = 0.01, top: int = 20) -> None:
    """Makes all tables, as temporary ones of the connection."""
    connection.execute(ACCOUNT)
    connection.execute(UNMATCHED)
    group = "topic, partition, kind, principal, window_start"
    for name, keys, of in (
        ("groups", group, "TRUE"),
        ("topics", "topic, kind", "TRUE"),
        ("windows", "window_start, kind", "item = 0"),
        ("topic_windows", "window_start, topic, kind", "item = 0"),
    ):
        connection.execute(roll_up(name, keys, of, window_ms))
    hot_keys, slow = HOT_KEYS.format(top=top), SLOW.format(share=1 - slow_share)
    for made in (PARTITIONS, hot_keys, BACKLOG, CURVE, slow, REACHED, HELD, STRAGGLERS, *ADVICE, anomalies(window_ms)):
        connection.execute(made)


def main() -> None:
    """Makes the tables of an archive and writes them."""
    archive, out = (Path(argument) for argument in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    connection = open_history(archive)
    make_tables(connection, WINDOW_MS)
    for name in TABLES:
        connection.execute(f"COPY {name} TO '{out}/{name}.parquet'; COPY {name} TO '{out}/{name}.csv'")


ACCOUNT: Final = """
CREATE OR REPLACE TEMP TABLE account AS
WITH steps AS (
    SELECT "table", run_id, time_ms - lag(time_ms) OVER told AS engine_ms,
        "at" - lag("at") OVER told AS wall
    FROM (
        SELECT 'registrations' AS "table", run_id, call_number, min(time_ms) AS time_ms, min("at") AS "at"
        FROM registrations GROUP BY ALL
        UNION ALL
        SELECT 'outcomes', run_id, call_number, min(time_ms), min("at") FROM outcomes GROUP BY ALL
        UNION ALL
        SELECT 'events', run_id, call_number, min(time_ms), min("at") FROM events GROUP BY ALL
    )
    WINDOW told AS (PARTITION BY "table", run_id ORDER BY call_number)
)
SELECT 'rows' AS what, 'registrations' AS "table", count(*) AS number FROM registrations
UNION ALL SELECT 'rows', 'outcomes', count(*) FROM outcomes
UNION ALL SELECT 'rows', 'events', count(*) FROM events
UNION ALL SELECT 'steps back of the engine', "table", count(*) FROM steps WHERE engine_ms < 0 GROUP BY ALL
UNION ALL SELECT 'steps back of the wall clock', "table", count(*) FROM steps WHERE wall < INTERVAL 0 MILLISECOND
    GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE repeated AS
SELECT 'registrations' AS "table", count(*) AS operations FROM (
    SELECT 1 FROM registrations WHERE item = 0 GROUP BY run_id, session_number, operation_id HAVING count(*) > 1
)
UNION ALL
SELECT 'outcomes', count(*) FROM (
    SELECT 1 FROM outcomes WHERE item = 0 GROUP BY run_id, session_number, operation_id HAVING count(*) > 1
)
"""

UNMATCHED: Final = """
CREATE OR REPLACE TEMP TABLE run_ends AS
    SELECT run_id, max(time_ms) AS run_end_ms
    FROM (SELECT run_id, time_ms FROM registrations UNION ALL SELECT run_id, time_ms FROM outcomes) GROUP BY run_id;
CREATE OR REPLACE TEMP TABLE unfinished AS
    SELECT r.*, if(run_end_ms - time_ms > timeout_ms + 60000, NULL, run_end_ms - time_ms) AS waited_ms
    FROM (
        SELECT run_id, session_number, operation_id, item, time_ms, "at", timeout_ms, topic, partition, kind, principal
        FROM registrations WHERE refusal_code = 0
    ) r ANTI JOIN outcomes o USING (run_id, session_number, operation_id, item) JOIN run_ends USING (run_id);
CREATE OR REPLACE TEMP TABLE carried_in AS
    SELECT o.* FROM (
        SELECT run_id, session_number, operation_id, item, "at", topic, partition, kind, principal FROM outcomes
    ) o ANTI JOIN registrations r USING (run_id, session_number, operation_id, item);
"""


def roll_up(name: str, keys: str, of: str, window_ms: int) -> str:
    """One table of counts and waits; `of` chooses the rows that count."""
    start = f'time_bucket(INTERVAL {window_ms} MILLISECOND, "at") AS window_start'
    source = "(SELECT *, {start} FROM {table} WHERE {of})"
    registrations, outcomes, unfinished, carried_in = (
        source.format(start=start, table=table, of=of)
        for table in ("registrations", "outcomes", "unfinished", "carried_in")
    )
    ends = ", ".join(
        f"count(*) FILTER (outcome = '{outcome}') AS {outcome}"
        for outcome in ("satisfied", "failed", "expired", "cancelled", "shutting_down")
    )
    counts = {column: f"coalesce(sum({column}), 0)::BIGINT" for column in COUNTS}
    columns = ", ".join(f"{source} AS {column}" for column, source in {**counts, **WAITS}.items())
    return f"""
    CREATE OR REPLACE TEMP TABLE {name} AS
    SELECT {keys}, {columns}
    FROM (
        SELECT {keys}, count(*) AS registered, count(*) FILTER (refusal_code <> 0) AS refused
        FROM {registrations} GROUP BY ALL
        UNION ALL BY NAME
        SELECT {keys}, count(*) AS ended, {ends}, sum(waited_ms) AS waited_ms_all, max(waited_ms) AS longest,
            quantile_disc(waited_ms, [0.5, 0.9, 0.99, 0.999]) AS waits,
            quantile_disc(lateness_ms, [0.5, 0.99, 1.0]) FILTER (outcome = 'expired') AS lateness
        FROM {outcomes} GROUP BY ALL
        UNION ALL BY NAME SELECT {keys}, count(*) AS unfinished FROM {unfinished} GROUP BY ALL
        UNION ALL BY NAME SELECT {keys}, count(*) AS carried_in FROM {carried_in} GROUP BY ALL
    ) GROUP BY ALL
    """  # noqa: S608


PARTITIONS: Final = """
CREATE OR REPLACE TEMP TABLE topics AS
SELECT * FROM topics JOIN (SELECT topic, kind, count(DISTINCT partition) AS partitions FROM groups GROUP BY ALL)
USING (topic, kind)
"""

HOT_KEYS: Final = """
CREATE OR REPLACE TEMP TABLE hot_keys AS
WITH counted AS (
    SELECT topic, partition, kind, count(*) AS waits, sum(waited_ms)::BIGINT AS waited_total_ms
    FROM outcomes GROUP BY ALL
)
(SELECT 'waits' AS "by", row_number() OVER (ORDER BY waits DESC, topic, partition, kind) AS rank, *,
    waits / sum(waits) OVER () AS share
 FROM counted QUALIFY rank <= {top})
UNION ALL
(SELECT 'waited', row_number() OVER (ORDER BY waited_total_ms DESC, topic, partition, kind) AS rank, *,
    waited_total_ms / greatest(sum(waited_total_ms) OVER (), 1) AS share
 FROM counted QUALIFY rank <= {top})
"""

BACKLOG: Final = """
CREATE OR REPLACE TEMP TABLE backlog AS
WITH steps AS (
    SELECT run_id, topic, partition, kind, time_ms - waited_ms AS time_ms, 1 AS step,
        epoch_ms("at") - waited_ms AS at_ms
    FROM outcomes WHERE waited_ms > 0
    UNION ALL
    SELECT run_id, topic, partition, kind, time_ms, -1, epoch_ms("at") FROM outcomes WHERE waited_ms > 0
    UNION ALL
    SELECT run_id, topic, partition, kind, time_ms, 1, epoch_ms("at") FROM unfinished WHERE waited_ms IS NOT NULL
), nets AS (
    SELECT run_id, topic, partition, kind, time_ms, sum(step)::BIGINT AS step, min(at_ms) AS at_ms FROM steps
    GROUP BY ALL
), pending AS (
    SELECT run_id, topic, partition, kind, at_ms,
        (sum(step) OVER (PARTITION BY run_id, topic, partition, kind ORDER BY time_ms))::BIGINT AS pending
    FROM nets
), best AS (
    SELECT topic, partition, kind, max(pending) AS deepest, max((pending << 42) - at_ms) AS score,
        arg_max(run_id, (pending << 42) - at_ms) AS run_id
    FROM pending WHERE pending > 0 GROUP BY ALL
)
SELECT topic, partition, kind, deepest, run_id, make_timestamptz(((deepest << 42) - score) * 1000) AS "at" FROM best
"""

CURVE: Final = """
CREATE OR REPLACE TEMP TABLE timeouts_used AS
SELECT topic, kind, timeout_ms, count(*) AS operations FROM registrations
WHERE item = 0 AND refusal_code = 0 GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE curve AS
SELECT topic, kind, waited_ms, count(*) FILTER (outcome = 'satisfied') AS satisfied,
    count(*) FILTER (outcome = 'expired') AS expired, count(*) FILTER (outcome <> 'satisfied') AS others
FROM (
    SELECT topic, kind, waited_ms, outcome FROM outcomes WHERE item = 0
    UNION ALL SELECT topic, kind, waited_ms, 'unfinished' FROM unfinished WHERE item = 0 AND waited_ms IS NOT NULL
) GROUP BY ALL
"""

SLOW: Final = """
CREATE OR REPLACE TEMP TABLE slow AS
WITH produces AS (SELECT * FROM outcomes WHERE kind = 'produce' AND outcome = 'satisfied'),
limits AS (SELECT quantile_disc(waited_ms, {share}) AS slow_over_ms FROM produces WHERE item = 0)
SELECT run_id, session_number, operation_id, topic, partition, call_number AS end_call, time_ms AS end_ms,
    time_ms - waited_ms AS begin_ms, waited_ms, required_offset
FROM produces, limits WHERE waited_ms > slow_over_ms
"""

REACHED: Final = """
CREATE OR REPLACE TEMP TABLE reached AS
WITH waits AS (
    SELECT *, unnest(range((begin_ms - 256) // 1024, end_ms // 1024 + 1)) AS slot FROM slow
), happened AS (
    SELECT run_id, topic, partition, time_ms // 1024 AS slot, type, call_number, "row", time_ms, "offset", in_sync,
        if(type = 'follower_progress', replica_id, -1) AS replica
    FROM events
    WHERE refusal_code = 0 AND type IN ('leader_append', 'follower_progress', 'high_watermark', 'in_sync_replicas')
)
SELECT w.run_id, session_number, operation_id, w.topic, w.partition, type, replica,
    min({'call': call_number, 'row': "row", 'time_ms': time_ms, 'in_sync': in_sync}) AS first
FROM waits w JOIN happened h USING (run_id, topic, partition, slot)
WHERE h.time_ms >= begin_ms - 256 AND call_number <= end_call
    AND if(type = 'in_sync_replicas', call_number = end_call, "offset" >= required_offset)
GROUP BY ALL
"""

HELD: Final = """
CREATE OR REPLACE TEMP TABLE held AS
WITH states AS (
    SELECT run_id, topic, partition, call_number AS from_call,
        last_value(CASE WHEN len(in_sync) > 0 THEN in_sync END IGNORE NULLS) OVER told AS members,
        last_value(CASE WHEN leader_id >= 0 THEN leader_id END IGNORE NULLS) OVER told AS leader,
        lead(call_number) OVER told AS to_call
    FROM events WHERE refusal_code = 0 AND type IN ('in_sync_replicas', 'leadership')
    WINDOW told AS (PARTITION BY run_id, topic, partition ORDER BY call_number, "row")
), known AS (
    SELECT s.*, members, leader FROM slow s LEFT JOIN states t
    ON s.run_id = t.run_id AND s.topic = t.topic AND s.partition = t.partition AND from_call < end_call
        AND (to_call IS NULL OR to_call >= end_call)
), steps AS (
    SELECT k.*, type, replica, first.call AS call, first.row AS step_row, first.time_ms AS at_ms,
        first.in_sync AS stayed,
        type = 'follower_progress' AND (members IS NULL OR list_contains(members, replica)) AS is_follower
    FROM known k LEFT JOIN reached USING (run_id, session_number, operation_id, topic, partition)
), waits AS (
    SELECT run_id, session_number, operation_id, topic, partition, end_call, end_ms, begin_ms, waited_ms, members,
        leader,
        list({'call': call, 'row': step_row, 'at_ms': at_ms, 'replica': replica} ORDER BY call DESC, step_row DESC)
            FILTER (is_follower) AS followers,
        any_value({'call': call, 'row': step_row, 'at_ms': at_ms}) FILTER (type = 'leader_append') AS append,
        bool_or(type = 'high_watermark' AND call = end_call) AS told,
        list(replica) FILTER (type = 'follower_progress') AS had_it,
        any_value(stayed) FILTER (type = 'in_sync_replicas') AS stayed
    FROM steps GROUP BY ALL
), gone AS (
    SELECT *, list_sort(list_filter(members, lambda m: stayed IS NOT NULL AND NOT list_contains(stayed, m)
        AND NOT coalesce(list_contains(had_it, m), FALSE))) AS gone
    FROM waits
), judged AS (
    SELECT *, CASE WHEN followers[1].call = end_call THEN 'follower' WHEN append.call = end_call THEN 'leader'
            WHEN len(gone) > 0 THEN 'left' WHEN told THEN 'told' ELSE 'unknown' END AS cause,
        CASE WHEN followers[1] IS NULL OR append.at_ms <= followers[1].at_ms THEN append.at_ms END AS appended_ms
    FROM gone
), blamed AS (
    SELECT *, CASE cause WHEN 'follower' THEN followers[1].replica WHEN 'leader' THEN coalesce(leader, -1)
            WHEN 'left' THEN gone[1] END AS replica_id,
        CASE cause WHEN 'follower' THEN coalesce(followers[2].at_ms, appended_ms)
            WHEN 'left' THEN coalesce(followers[1].at_ms, appended_ms) ELSE followers[1].at_ms END AS second_ms,
        list_position(['unknown', 'told', 'left', 'leader', 'follower'], cause) AS rank,
        CASE cause WHEN 'follower' THEN followers[1].row WHEN 'leader' THEN append.row ELSE 0 END AS end_row
    FROM judged
)
SELECT run_id, session_number, operation_id, topic, cause, replica_id, waited_ms,
    if(replica_id IS NULL, NULL, end_ms - greatest(coalesce(second_ms, begin_ms), begin_ms)) AS held_ms
FROM blamed
QUALIFY row_number() OVER (
    PARTITION BY run_id, session_number, operation_id ORDER BY rank DESC, end_row DESC, partition DESC, topic DESC
) = 1
"""

STRAGGLERS: Final = """
CREATE OR REPLACE TEMP TABLE slow_produces AS
SELECT cause, count(*) AS operations, sum(waited_ms)::BIGINT AS waited_total_ms,
    count(*) / sum(count(*)) OVER () AS share
FROM held GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE stragglers AS
SELECT topic, replica_id, count(*) AS held_back, sum(held_ms)::BIGINT AS total_ms,
    quantile_disc(held_ms, 0.5) AS median_ms, quantile_disc(held_ms, 0.99) AS p99_ms, max(held_ms) AS max_ms,
    count(*) / sum(count(*)) OVER (PARTITION BY topic) AS share
FROM held WHERE replica_id IS NOT NULL GROUP BY GROUPING SETS ((topic, replica_id), (replica_id))
"""


if __name__ == "__main__":
    main()
