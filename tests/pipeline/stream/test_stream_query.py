"""The purgatory as a stream of Spark: the engine's own outcomes, over restarts and with bad rows among good ones."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.cli import main
from purgatory_pipeline.datasource import PurgatoryDataSource
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.spark.spark_session import own_session
from purgatory_pipeline.stream.endpoints import StreamInput, StreamOutput
from purgatory_pipeline.stream.shard_state import ShardLayout
from purgatory_pipeline.stream.shard_task import write_part
from purgatory_pipeline.stream.stream_query import StreamOptions, start_stream
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import QueryStartedEvent, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.engine.codes import PRODUCE
from tests.pipeline.conftest import worker_environment
from tests.pipeline.stream.simulated_history import SimulatedHistory, StreamFolders, outcomes_of

WAIT_S = 300
DELAY_MS = 100
OLD_S = 1_600_000_000
FUTURE_MS = 4_102_444_800_000  # 2100


def run(
    spark: SparkSession,
    folders: StreamFolders,
    **options: Any,  # noqa: ANN401 - those of `start`
) -> StreamingQuery:
    query = start(spark, folders, **options)
    assert query.awaitTermination(WAIT_S), "it did not end"
    assert query.exception() is None
    return query


def start(
    spark: SparkSession,
    folders: StreamFolders,
    *,
    form: str = "",
    results: str = "",
    delay_ms: int = DELAY_MS,
    heartbeat_s: int = 0,
) -> StreamingQuery:
    """A query with a heartbeat runs until it is stopped; without one, it ends after the available input."""
    inputs = [
        StreamInput(OPERATION, str(folders.registrations), form, 1, 1),
        StreamInput(EVENT, str(folders.events), form, 1, 1),
    ]
    options = StreamOptions(
        checkpoint=str(folders.results / "_checkpoint"), shards=2, delay_ms=delay_ms,
        once=not heartbeat_s, heartbeat_s=heartbeat_s,
    )  # fmt: skip
    output = StreamOutput(results or str(folders.results), str(folders.results))
    return start_stream(spark, inputs, output, options)


@pytest.mark.slow  # asks Spark
def test_a_history_ends_as_by_the_engine_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """All kinds of operation and event, in micro-batches; the query ends between them and goes on from its checkpoint.
    A file modified years before the newest counts like any other. A damaged file is set aside and named. A row dated
    far ahead of the clock is set aside with the reason: time does not move because of it, so nothing that comes later
    is late. What a query leaves that was killed while it recorded its first offsets does not matter.
    """
    history = SimulatedHistory.of_seed(21, 1_500)
    folders = StreamFolders(tmp_path)
    parts = folders.slices(history.rows, 4)
    for part in (parts[0], [*parts[1], {"at_ms": FUTURE_MS}]):
        folders.write(part)
    for path in (folders.registrations / "00000.parquet", folders.events / "00000.parquet"):
        os.utime(path, (OLD_S, OLD_S))
    (offsets := folders.results / "_checkpoint" / "offsets").mkdir(parents=True)
    (offsets / ".0.4d1c7a52-2f0e-4f3a-9d0b-0c8c1c0f6c11.tmp").touch()
    query = run(spark, folders)
    first = len(folders.outcomes())
    assert_pending(spark, folders, history, query)
    (folders.registrations / "damaged.parquet").write_bytes(b"PAR1 and nothing else")
    for part in parts[2:]:
        folders.write(part)
    folders.write([{"at_ms": history.end_ms + DELAY_MS}])
    run(spark, folders)
    assert folders.rows("malformed").column("record")[0].as_py().endswith(b"damaged.parquet")
    assert sorted(map(repr, folders.outcomes())) == sorted(map(repr, history.outcomes))
    assert 0 < first < len(history.outcomes)
    quarantine = folders.rows("quarantine").to_pylist()
    [ahead] = [row["reason"] for row in quarantine if row["at_ms"] == FUTURE_MS]
    assert "more than --max-ahead later than the clock" in ahead
    assert (len(quarantine), folders.rows("late").num_rows) == (history.refused_events + 1, 0)


def assert_pending(
    spark: SparkSession, folders: StreamFolders, history: SimulatedHistory, query: StreamingQuery
) -> None:
    """The figures of the last micro-batch, and the rows of its checkpoint, are of operations that were registered by
    then and have an outcome later.
    """
    assert query.lastProgress is not None
    observed = query.lastProgress.observedMetrics
    figures, horizon_ms = observed["purgatory"], observed["marks"]["horizon"]
    ended = {outcome[:3] for outcome in folders.outcomes()}
    waiting = {outcome[:3] for outcome in history.outcomes if outcome[2] < horizon_ms} - ended
    oldest_ms = horizon_ms - 1 - min(registered_ms for *_, registered_ms in waiting)
    assert (figures["pending"], figures["oldest_wait_ms"]) == (len(waiting), oldest_ms)
    spark.dataSource.register(PurgatoryDataSource)
    frame = spark.read.format("purgatory").option("checkpoint", str(folders.results / "_checkpoint")).load()
    rows = frame.withColumn("registered_ms", F.unix_millis("registered_at")).collect()
    assert {(row["session"], row["operation_id"], row["registered_ms"]) for row in rows} == waiting
    assert {row["registered_ms"] + row["waited_ms"] for row in rows} == {horizon_ms - 1}
    deadlines = {outcome[:3]: outcome[2] + outcome[5] for outcome in history.outcomes if outcome[4] == "expired"}
    for row in rows:
        key = row["session"], row["operation_id"], row["registered_ms"]
        assert deadlines.get(key) in (None, horizon_ms - 1 + row["remaining_ms"])


def test_lines_of_json_with_bad_ones_among_them(spark: SparkSession, tmp_path: Path) -> None:
    """Every good record counts; bad ones, a damaged file and late rows are set aside with the reason. The outcomes go
    to a table, and the same again replaces them.
    """
    folders = StreamFolders(tmp_path)
    name = {"topicPartition": {"topic": "t", "partition": 0}}
    wait = {"operationId": "1", "timeoutMs": "5000", "produce": {"partitions": [name | {"requiredOffset": "5"}]}}
    signal = {"operationId": 2, "signal": {"keys": [{"key": "k", "requiredCount": 2}]}}
    lines = [
        json.dumps(wait | {"at": 1_000, "caller": "web"}),
        json.dumps(signal | {"at": "1970-01-01T00:00:01.100Z"}),
        "no json",
        json.dumps({"at": 1_000, "operationId": "3"}),
        json.dumps(wait),
        json.dumps({"at": 1_000, "nonsense": 1}),
    ]
    (folders.registrations / "1.json").write_text("\n".join(lines) + "\n\n")
    (folders.registrations / "2.json").write_bytes(b"\xff\xfe")
    marks = [
        {"at": 1_200, "highWatermark": {"offset": "5"}} | name,
        {"at": 1_300, "keySignalled": {"key": "k"}},
        {"at": 1_400, "keySignalled": {"key": "k"}},
    ]
    (folders.events / "1.json").write_text("\n".join(map(json.dumps, marks)))
    (folders.events / "2.json").write_text(json.dumps({"at": 9_000, "highWatermark": {"offset": "6"}} | name))
    (folders.events / "3.json").write_text(json.dumps({"at": 1_250, "highWatermark": {"offset": "9"}} | name))
    for path in (*folders.registrations.glob("*"), *folders.events.glob("*")):
        os.utime(path, (1_700_000_000 + int(path.stem),) * 2)  # Spark takes the oldest first
    spark.sql("DROP TABLE IF EXISTS stream_outcomes")
    run(spark, folders, form="json", results="table:stream_outcomes", delay_ms=0)
    found = spark.table("stream_outcomes").orderBy("operation_id").collect()
    assert [(row["caller"], row["operation_id"], row["outcome"], row["waited_ms"]) for row in found] == [
        ("web", 1, "satisfied", 200), ("", 2, "satisfied", 300),
    ]  # fmt: skip
    reasons = sorted(folders.rows("malformed").column("reason").to_pylist())
    assert len(reasons) == 5
    assert any("condition" in reason for reason in reasons)
    assert any("at: not a valid time: None" in reason for reason in reasons)
    late = folders.rows("late").to_pylist()
    assert [(row["at_ms"], row["offset"]) for row in late] == [(1_250, 9)]
    spark.sql("DROP TABLE stream_outcomes")


def test_the_session_of_the_user_keeps_its_settings(spark: SparkSession, tmp_path: Path) -> None:
    """A stream needs a state store and shuffle partitions of its own; other queries of the session do not get them.
    Listeners of the session see the stream, and apart from those settings it has the user's. Here its folders are
    empty, which is no error.
    """
    seen: list[str | None] = []

    class Names(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
            seen.append(event.name)

        def ignore(self, event: object) -> None:
            pass

        onQueryProgress = onQueryIdle = onQueryTerminated = ignore  # noqa: N815 - Spark's names

    names = Names()
    before = spark.conf.getAll
    spark.streams.addListener(names)
    try:
        run(spark, StreamFolders(tmp_path))
    finally:
        spark.streams.removeListener(names)
    assert spark.conf.getAll == before
    assert seen == ["purgatory"]
    own = own_session(spark)
    assert {name: own.conf.get(name) for name in before} == before


def test_waits_expire_by_heartbeats_where_nothing_comes(spark: SparkSession, tmp_path: Path) -> None:
    """A registration without any event stays pending until a run with a heartbeat continues from the same checkpoint:
    then it expires by the machine's clock. In each micro-batch, sources that advance time are polled before
    registrations.
    """
    folders = StreamFolders(tmp_path)
    now_ms = time.time_ns() // 1_000_000
    wait = {"kind": PRODUCE, "operation_id": 1, "timeout_ms": 500, "item": 0, "item_count": 1, "topic": "t"}
    folders.write([wait | {"at_ms": now_ms, "caller": "web", "partition": 0, "offset": 5}])
    run(spark, folders)
    assert folders.outcomes() == []
    query = start(spark, folders, heartbeat_s=1)
    try:
        deadline = time.monotonic() + WAIT_S
        while not (folders.outcomes() and query.lastProgress):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.05)
        sources = [source["description"].rstrip("]") for source in query.lastProgress["sources"]]
    finally:
        query.stop()
    clock, *folders_read = sources
    assert clock.startswith("RateStream")
    assert [Path(one).name for one in folders_read] == ["events", "registrations"]
    (row,) = folders.rows("outcomes").to_pylist()
    assert (row["caller"], row["operation_id"], row["outcome"], row["waited_ms"]) == ("web", 1, "expired", 500)


@pytest.mark.parametrize(
    ("uri", "form", "said"),
    [("/tmp/rows", "protobuf", "parquet, json"), ("kafka://broker:9092/topic", "parquet", "protobuf, json")],
)
def test_unsupported_inputs_are_refused(uri: str, form: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        StreamInput(EVENT, uri, form, 1, 1)


@pytest.mark.slow  # asks Spark
@pytest.mark.parametrize("table", ["", "killed"])
def test_a_batch_done_again_with_another_delay_replaces_all_of_itself(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    """A run was killed after it had written a batch and before the commit. The next run has a longer delay, so the same
    batch has fewer outcomes and they come later: each is there once.
    """
    history = SimulatedHistory.of_seed(7, 600)
    folders = StreamFolders(tmp_path)
    results = f"table:{table}" if table else ""
    for part in folders.slices(history.rows, 2):
        folders.write(part)
    if table:
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    run(spark, folders, results=results)
    for log in ("commits/1", "commits/.1.crc"):
        (folders.results / "_checkpoint" / log).unlink(missing_ok=True)
    write_part(str(folders.results / "late"), 1, 9, pa.table({"of": ["the run that was killed"]}))
    long_ms = 10 * (history.end_ms - history.rows[0]["at_ms"])
    folders.write([{"at_ms": history.end_ms + long_ms}])
    run(spark, folders, results=results, delay_ms=long_ms)
    found = outcomes_of(spark.table(table).toArrow()) if table else folders.outcomes()
    assert sorted(map(repr, found)) == sorted(map(repr, history.outcomes))
    assert folders.rows("late").num_rows == 0
    if table:
        spark.sql(f"DROP TABLE {table}")


def test_a_table_of_a_catalog_in_memory_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with the remedy, and nothing is written: the next run would not find the table."""
    del spark
    places = [
        word
        for side in ("registrations", "events", "checkpoint", "quarantine")
        for word in (f"--{side}", str(tmp_path))
    ]
    assert main(["stream", *places, "--results", "table:outcomes", "--once"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "catalog is in memory" in line
    assert "--conf spark.sql.catalogImplementation=hive" in line
    assert list(tmp_path.iterdir()) == []


RUN_TWICE = """
import sys
from purgatory_pipeline.cli import main
code = main(sys.argv[1:])
print("the first run has ended", flush=True)
input()
sys.exit(code or main(sys.argv[1:]))
"""


@pytest.mark.slow  # a process with a Spark and a Hive
@pytest.mark.usefixtures("java")
def test_a_table_of_a_persistent_catalog_grows_from_run_to_run(tmp_path: Path) -> None:
    history = SimulatedHistory.of_seed(2, 200)
    folders = StreamFolders(tmp_path)
    warehouse = tmp_path / "warehouse"
    derby = f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
    conf = {
        "spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": warehouse, "spark.master": "local[1]",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby, "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
    }  # fmt: skip
    command = [
        sys.executable, "-c", RUN_TWICE, "stream", "--registrations", str(folders.registrations),
        "--events", str(folders.events), "--results", "table:outcomes", "--checkpoint", str(tmp_path / "checkpoint"),
        "--quarantine", str(folders.results), "--delay", f"{DELAY_MS}ms", "--forget", "1d", "--once",
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
    ]  # fmt: skip
    first, second = folders.slices(history.rows, 2)
    folders.write(first)
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **worker_environment()}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        printed = list(itertools.takewhile(lambda line: line != "the first run has ended\n", process.stdout))
        folders.write([*second, {"at_ms": history.end_ms + DELAY_MS}])
        rest, _ = process.communicate("\n")
    assert process.returncode == 0, "".join([*printed, rest])[-2_000:]
    line = r"batch 0: 46 outcomes, 5 quarantine; 0 pending; played up to 2023-11-\d\dT"
    assert any(re.match(line, one) for one in printed)
    files = sorted(warehouse.rglob("batch=*/*.parquet"))
    assert {file.parent.name for file in files} == {"batch=0", "batch=1"}
    assert ShardLayout(str(tmp_path / "checkpoint"), 4).load(0, 2, 0, forget_ms=1).named_ms
    found = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    assert sorted(map(repr, outcomes_of(found))) == sorted(map(repr, history.outcomes))
