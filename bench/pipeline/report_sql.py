"""The report's tables as hand-written SQL (`sql/`) for DuckDB: a peer in the benchmark, a reference in the tests.

    python -m bench.pipeline.report_sql ARCHIVE DIR    # makes the tables and writes each as Parquet and as CSV

It creates views over the archive's files. Each table has the columns of
`purgatory_pipeline.report.report_tables`, except that `advice` has no sentence.
`account` contains the counts of rows, clocks and repeated operations that `check`
reports.
"""

import sys
from pathlib import Path
from typing import Final

import duckdb

SCRIPTS: Final = Path(__file__).with_name("sql")
TABLES: Final = (
    "account", "repeated", "groups", "topics", "windows", "hot_keys", "principals", "backlog", "slow_produces",
    "stragglers", "advice", "near_misses", "timeouts", "survival", "anomalies", "budget",
)  # fmt: skip
COUNTS: Final = (
    "registered", "refused", "ended", "satisfied", "failed", "expired", "cancelled", "shutting_down", "unfinished",
    "carried_in",
)  # fmt: skip
WAITS: Final = {
    "waited_total_ms": "coalesce(sum(waited_ms_all), 0)::BIGINT",
    "expired_total_ms": "coalesce(sum(waited_ms_expired), 0)::BIGINT",
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
"""The source of each column: at most one of the joined rows has it."""


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


def make_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create all tables as temporary tables of the connection. Later scripts read the tables of earlier ones."""
    run_script(connection, "intake")
    group = "topic, partition, kind, principal, window_start"
    for name, keys, of in (
        ("groups", group, "TRUE"),
        ("topics", "topic, kind", "TRUE"),
        ("windows", "window_start, kind", "item = 0"),
        ("topic_windows", "window_start, topic, kind", "item = 0"),
    ):
        connection.execute(roll_up(name, keys, of))
    for script in ("near_misses", "waits", "stragglers", "advice", "anomalies"):
        run_script(connection, script)


def run_script(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    connection.execute((SCRIPTS / f"{name}.sql").read_text(encoding="utf-8"))


def main() -> None:
    """Create the tables of an archive and write them."""
    archive, out = (Path(argument) for argument in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    connection = open_history(archive)
    make_tables(connection)
    for name in TABLES:
        connection.execute(f"COPY {name} TO '{out}/{name}.parquet'; COPY {name} TO '{out}/{name}.csv'")


def roll_up(name: str, keys: str, of: str) -> str:
    """One table of counts and waits; `of` selects the rows to count."""
    start = 'time_bucket(INTERVAL 1 HOUR, "at") AS window_start'
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
            sum(waited_ms) FILTER (outcome = 'expired') AS waited_ms_expired,
            quantile_disc(waited_ms, [0.5, 0.9, 0.99, 0.999]) AS waits,
            quantile_disc(lateness_ms, [0.5, 0.99, 1.0]) FILTER (outcome = 'expired') AS lateness
        FROM {outcomes} GROUP BY ALL
        UNION ALL BY NAME SELECT {keys}, count(*) AS unfinished FROM {unfinished} GROUP BY ALL
        UNION ALL BY NAME SELECT {keys}, count(*) AS carried_in FROM {carried_in} GROUP BY ALL
    ) GROUP BY ALL
    """  # noqa: S608


if __name__ == "__main__":
    main()
