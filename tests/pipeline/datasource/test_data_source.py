"""The Spark format `purgatory` against a real daemon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from purgatory_client import Client, Outcome
from purgatory_client.batches import produce, signal
from purgatory_pipeline.datasource import PurgatoryDataSource, result_reader
from purgatory_pipeline.datasource.daemon_options import DaemonOptions
from purgatory_pipeline.datasource.pending_reader import FilteringReader
from purgatory_pipeline.datasource.result_reader import BEGINNING, SessionOffset, SessionResults, rows_of
from purgatory_pipeline.errors import PipelineError
from pyspark.errors import PySparkException, StreamingQueryException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.testing import RunningDaemon
from purgatory.v1 import result_pb2
from tests.histories.worlds.spark import written_ids
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import wait_until
from tests.pipeline.datasource.test_daemon_writer import event, waits

WAIT_S = 180


@pytest.fixture
def with_format(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with the format registered; its queries end with the test."""
    spark.dataSource.register(PurgatoryDataSource)
    yield spark
    for query in spark.streams.active:
        query.stop()


def pending(client: Client) -> int:
    return sum(kind.pending for kind in client.status().kinds)


def end_some(client: Client, session: str, first_id: int, count: int) -> None:
    """Registers waits that hold at once: each has a result."""
    client.advance(("t", 0), high_watermark=1_000_000)
    client.register(session, first_id, produce([("t", 0)], offsets=list(range(count))))


class Reading:
    """A query that writes a session's results as files."""

    def __init__(
        self, spark: SparkSession, address: str, folder: Path, session: str = "nightly", **options: int
    ) -> None:
        reader = spark.readStream.format("purgatory").option("address", address).option("session", session)
        for name, value in options.items():
            reader = reader.option(name, value)
        self._frame: DataFrame = reader.load()
        self._folder = folder
        self._query: StreamingQuery

    def start(self, **trigger: Any) -> StreamingQuery:  # noqa: ANN401 - as Spark's own
        writer = self._frame.writeStream.format("parquet").option("path", str(self._folder / "out"))
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        self._query = writer.trigger(**trigger or {"processingTime": "100 milliseconds"}).start()
        return self._query

    def run(self, **trigger: Any) -> int:  # noqa: ANN401 - as Spark's own
        """Run a query that ends by itself; returns how many micro-batches have been committed with this checkpoint."""
        query = self.start(**trigger)
        assert query.awaitTermination(WAIT_S), "the query does not end"
        assert query.exception() is None
        return len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))

    def until_ids(self, expected: list[int]) -> None:
        wait_until(lambda: self.ids() == expected or self._has_failed())

    def _has_failed(self) -> bool:
        if failure := self._query.exception():
            raise failure  # rather than wait for rows that no query will write
        return False

    def ids(self) -> list[int]:
        return written_ids(self._folder)


def test_results_are_rows_and_are_acknowledged_once_committed(
    with_format: SparkSession, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Each once, over several micro-batches and a restart of the query; the daemon keeps none of them. Each session has
    its own sequence numbers.
    """
    end_some(daemon.client, "one", 1, 25)
    end_some(daemon.client, "two", 101, 7)
    reading = Reading(with_format, daemon.address, tmp_path, session="one, two", maxRows=10)
    query = reading.start()
    reading.until_ids([*range(1, 26), *range(101, 108)])
    wait_until(lambda: daemon.client.status().unacknowledged_results == 0)
    query.stop()
    end_some(daemon.client, "one", 26, 5)
    reading.start()
    reading.until_ids([*range(1, 31), *range(101, 108)])
    row = with_format.read.parquet(str(tmp_path / "out")).where("operation_id = 3").collect()[0]
    assert (row["session"], row["kind"], row["outcome"]) == ("one", "produce", "satisfied")
    assert [(item["topic"], item["partition"], item["required_offset"]) for item in row["items"]] == [("t", 0, 2)]


def test_available_now_reads_what_is_there_and_ends(
    with_format: SparkSession, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """In as many micro-batches as `maxRows` requires, and all of it is acknowledged. The next run reads what was added,
    also with a new checkpoint, although results before it are gone then; without anything new a run has no micro-batch.
    """
    end_some(daemon.client, "nightly", 1, 20)
    reading = Reading(with_format, daemon.address, tmp_path / "first", maxRows=6)
    assert reading.run(availableNow=True) == 4
    assert reading.ids() == list(range(1, 21))
    assert daemon.client.status().unacknowledged_results == 0
    assert reading.run(availableNow=True) == 4
    end_some(daemon.client, "nightly", 21, 7)
    assert reading.run(availableNow=True) == 6
    assert reading.ids() == list(range(1, 28))
    end_some(daemon.client, "nightly", 28, 7)
    again = Reading(with_format, daemon.address, tmp_path / "second", maxRows=6)
    assert again.run(availableNow=True) == 2
    assert again.ids() == list(range(28, 35))


def test_available_now_leaves_what_arrives_while_it_runs(
    with_format: SparkSession, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Otherwise a query over a busy session would never end."""
    counts: list[int] = []
    end_some(daemon.client, "nightly", 1, 10)

    def take(frame: DataFrame, batch: int) -> None:
        counts.append(frame.count())
        end_some(daemon.client, "nightly", 100 * (batch + 1), 10)

    reader = with_format.readStream.format("purgatory").option("address", daemon.address)
    rows = reader.option("session", "nightly").option("maxRows", 5).load()
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S), "the query does not end"
    assert query.exception() is None
    assert counts == [5, 5]


def test_once_reads_what_is_there_in_one_micro_batch(
    with_format: SparkSession, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """It has all sessions, whatever `maxRows` is; the next run continues from there, and acknowledges it."""
    for session in ("one", "two"):
        end_some(daemon.client, session, 1, 20)
    reading = Reading(with_format, daemon.address, tmp_path, session="one, two", maxRows=6)
    assert reading.run(once=True) == 1
    assert reading.ids() == sorted([*range(1, 21), *range(1, 21)])
    end_some(daemon.client, "two", 21, 1)
    assert reading.run(once=True) == 2
    assert reading.ids()[-1] == 21
    assert daemon.client.status().unacknowledged_results == 1


def test_triggers_that_need_a_continuous_source_are_refused(with_format: SparkSession, tmp_path: Path) -> None:
    """The sink would accept them. The message says that it is the source that cannot be read this way."""
    rows = with_format.readStream.format("purgatory").option("session", "nightly").load()
    writer = rows.writeStream.format("console").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(UnsupportedOperationException, match="purgatory does not support continuous processing"):
        writer.trigger(continuous="1 second").start()
    query = writer.outputMode("update").trigger(realTime="5 seconds").start()  # type: ignore[call-overload] # it is new
    with pytest.raises(StreamingQueryException, match=r"real-time mode .* The input stream .* is not supported"):
        query.awaitTermination(WAIT_S)


def test_a_daemon_without_a_journal_may_be_restarted_under_a_query(
    with_format: SparkSession, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """The query continues with the results of the session that was created again, and acknowledges them. So does one
    that starts after the session was created once more.
    """
    daemon = start_daemon()
    reading = Reading(with_format, daemon.address, tmp_path)
    with Client(daemon.address) as client:
        end_some(client, "nightly", 1, 5)
        query = reading.start()
        reading.until_ids([*range(1, 6)])
    daemon.kill()
    daemon = start_daemon("--grpc-address", daemon.address)
    with Client(daemon.address) as client:
        end_some(client, "nightly", 11, 2)
        reading.until_ids([*range(1, 6), 11, 12])
        wait_until(lambda: client.status().unacknowledged_results == 0)
        query.stop()
        client.close_session("nightly")
        end_some(client, "nightly", 21, 9)
        reading.start()
        reading.until_ids([*range(1, 6), 11, 12, *range(21, 30)])


def test_a_micro_batch_whose_results_are_lost_fails_the_query(
    with_format: SparkSession, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """It was begun and not committed, as after a kill, and the session has been created again since. It would go
    unnoticed if other results were read in its place.
    """
    reading = Reading(with_format, daemon.address, tmp_path)
    end_some(daemon.client, "nightly", 1, 5)
    reading.run(availableNow=True)
    for log in ("checkpoint/commits", "out/_spark_metadata"):
        for name in ("0", ".0.crc"):
            (tmp_path / log / name).unlink()
    daemon.client.close_session("nightly")
    end_some(daemon.client, "nightly", 1, 9)
    query = reading.start()
    with pytest.raises(
        StreamingQueryException, match=r"session nightly: results 1 to 5 .* are lost.*another checkpoint"
    ):
        query.awaitTermination(WAIT_S)


@pytest.mark.parametrize("streamed", [True, False])
def test_events_and_registrations_are_written(
    with_format: SparkSession, daemon: RunningDaemon, tmp_path: Path, *, streamed: bool
) -> None:
    registrations = [row for number in range(1, 6) for row in waits(number, offset=number, items=2)]
    events = [event(1, "high_watermark", 3, partition=item) for item in range(2)]

    def write(part: str, rows: list[dict[str, Any]]) -> None:
        (tmp_path / part).mkdir()
        pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / part / "1.parquet")
        frame = with_format.read.parquet(str(tmp_path / part))
        if not streamed:
            frame.write.format("purgatory").option("address", daemon.address).mode("append").save()
            return
        stream = with_format.readStream.schema(frame.schema).parquet(str(tmp_path / part))
        writer = stream.writeStream.format("purgatory").option("address", daemon.address)
        query = writer.option("checkpointLocation", str(tmp_path / f"{part} done")).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        assert query.exception() is None

    write("registrations", registrations)
    assert pending(daemon.client) == 5
    table = with_format.read.format("purgatory").option("address", daemon.address).load()
    assert sorted(row["operation_id"] for row in table.where("kind = 'produce'").collect()) == [1, 2, 3, 4, 5]
    other = with_format.read.format("purgatory").option("address", daemon.address).option("topicPrefix", "u").load()
    assert other.count() == 0
    write("events", events)
    assert pending(daemon.client) == 2
    collected = next(iter(daemon.client.results("s")))
    assert sorted(collected.operation_ids) == [1, 2, 3]
    assert set(collected.results.outcomes) == {Outcome.SATISFIED}


def test_an_overwriting_mode_is_refused(with_format: SparkSession) -> None:
    frame = with_format.createDataFrame([("s", "produce")], "session_id string, kind string")
    with pytest.raises(PySparkException, match="a daemon is never overwritten"):
        frame.write.format("purgatory").mode("overwrite").save()


@pytest.mark.parametrize(
    ("condition", "pushed", "received", "ids"),
    [
        ("kind = 'signal'", {"kind": "signal"}, [11], [11]),
        ("kind = 'nonsense'", {"kind": "nonsense"}, [], []),
        ("session = 'nobody'", {"session": "nobody"}, [], []),
        ("session = 'nobody' AND principal = ''", {"session": "nobody", "principal": ""}, [], []),
        ("session = 's' AND principal = ''", {"session": "s", "principal": ""}, [1, 2, 3], [1, 2, 3]),
        ("session = 's' AND operation_id >= 3", {"session": "s"}, [1, 2, 3], [3]),
    ],
)
def test_rows_that_a_condition_excludes_do_not_reach_spark(
    with_format: SparkSession,
    daemon: RunningDaemon,
    condition: str,
    pushed: dict[str, str],
    received: list[int],
    ids: list[int],
) -> None:
    daemon.client.register("s", 1, produce([("t", 0)], offsets=[5, 6, 7]))
    daemon.client.register("r", 11, signal(["k"]))
    reader = FilteringReader(DaemonOptions.of({"address": daemon.address}))
    filters = [*(EqualTo((name,), value) for name, value in pushed.items()), GreaterThan(("operation_id",), 0)]
    assert reader.pushFilters(filters) == filters, "Spark compares again"
    [part] = reader.partitions()
    assert sorted(id_ for rows in reader.read(part) for id_ in rows.column("operation_id").to_pylist()) == received
    with_format.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        table = with_format.read.format("purgatory").option("address", daemon.address).option("pushFilters", "true")
        assert sorted(row["operation_id"] for row in table.load().where(condition).collect()) == ids
    finally:
        with_format.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_message_of_the_wire_becomes_rows() -> None:
    """Refused operations have a reason, signals have no partition, and a single value applies to all rows."""
    columns = result_pb2.ResultColumns(
        kind=4, keys=["k", "l"], operation_id=[5, 6], outcome=[1, 6], waited_ms=[3, 0], item_count=[2, 0],
        item_index=[0, 1], error_code=[0, 0], required_offset=[1, 2], reached_offset=[1, 2], log_start_offset=[-1, -1],
        estimated_remaining_ms=[-1, -1], pace_per_second=[-1.0, 2.0],
    )  # fmt: skip
    columns.refusals.add(field="signal.keys", message="none")
    first, second = rows_of("s", "5e", 11, columns).to_pylist()
    assert (first["sequence"], first["kind"], first["outcome"], second["outcome"]) == (
        11,
        "signal",
        "satisfied",
        "refused",
    )
    assert [(item["topic"], item["partition"], item["pace_per_second"]) for item in first["items"]] == [
        ("k", None, None), ("l", None, 2.0),
    ]  # fmt: skip
    assert (second["items"], second["refusal"]) == ([], "signal.keys: none")
    composite = result_pb2.ResultColumns(
        kind=5, keys=["k"], operation_id=[7], outcome=[2], item_count=[2], item_index=[1, 0]
    )
    composite.partitions.add(topic="t", partition=2)
    [row] = rows_of("s", "5e", 13, composite).to_pylist()
    assert [(item["topic"], item["partition"]) for item in row["items"]] == [("k", None), ("t", 2)]


def options(address: str, rows_max: int = 10) -> DaemonOptions:
    """Options as Spark gives them."""
    return DaemonOptions.of({"address": address, "session": "s", "maxRows": str(rows_max)})


def test_a_daemon_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the time waited and the status of the last call."""
    monkeypatch.setattr(result_reader, "WAIT_S", 1.0)
    reader = SessionResults(options("127.0.0.1:1"), "s", BEGINNING)
    with pytest.raises(PipelineError, match=r"session s at 127\.0\.0\.1:1: not opened within 1 s \(UNAVAILABLE"):
        reader.newest_at_opening()
    reader.close()


def test_a_second_reader_takes_a_session_over(daemon: RunningDaemon) -> None:
    first = SessionResults(options(daemon.address), "s", BEGINNING)
    assert first.newest_at_opening() == 0
    second = SessionResults(options(daemon.address), "s", BEGINNING)
    with pytest.raises(PipelineError, match="another reader has opened it"):
        first.rows(0, SessionOffset(incarnation=first.incarnation, sequence=1))
    assert second.newest_at_opening() == 0
    first.close()
    second.close()


def test_what_is_wanted_is_received_however_much_is_held(daemon: RunningDaemon) -> None:
    """Otherwise only two micro-batches are held. An offset of another incarnation acknowledges nothing."""
    for first_id in range(1, 5_000, 100):
        end_some(daemon.client, "s", first_id, 100)
    reader = SessionResults(options(daemon.address, rows_max=1), "s", BEGINNING)
    assert reader.newest_at_opening() == 5_000
    last = SessionOffset(incarnation=reader.incarnation, sequence=5_000)
    assert reader.rows(100, last).column("sequence").to_pylist() == list(range(101, 5_001))
    reader.acknowledge(SessionOffset(incarnation="another", sequence=5_000))
    assert daemon.client.status().unacknowledged_results == 5_000
    reader.acknowledge(SessionOffset(incarnation=reader.incarnation, sequence=4_990))
    assert daemon.client.status().unacknowledged_results == 10
    assert (reader.first, reader.newest) == (1, 5_000)
    reader.close()


def test_options_that_make_no_sense_are_named() -> None:
    for text in ("many", "0", "1_0", "\u0663"):
        with pytest.raises(PipelineError, match=f"maxRows: {text}"):
            DaemonOptions.of({"maxRows": text})
    assert DaemonOptions.of({"session": "a, b,"}).sessions == ("a", "b")
