"""Offsets committed by Spark queries, as marks of a real daemon, and the examples of Spark jobs that are waited for."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from purgatory_client import Client, Outcome
from purgatory_client.errors import NotFound
from purgatory_connectors.publisher.observation import Observation, SourceState
from purgatory_connectors.publisher.publisher import Publisher
from purgatory_pipeline.listener import PurgatoryListener
from purgatory_pipeline.listener.query_listener import QuerySource, committed_marks, ends_of_log, marks_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.spark_jobs import nightly_batch, own_write
from purgatory.testing import RunningDaemon, daemon_in_process
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.recorded import assert_values_recorded

LINES = ("spark/lines/source0", 0)


@pytest.fixture
def listen(spark: SparkSession) -> Iterator[Callable[..., PurgatoryListener]]:
    """Starts listeners, and ends them after the test."""
    started: list[PurgatoryListener] = []

    def start(*daemons: str, state: Path | None = None) -> PurgatoryListener:
        listener = PurgatoryListener(*daemons, state=state)
        spark.streams.addListener(listener)
        started.append(listener)
        return listener

    yield start
    for query in spark.streams.active:
        query.stop()
    for listener in started:
        spark.streams.removeListener(listener)
        listener.close()


class LinesJob:
    """A streaming query over a folder of text files; each file is one batch, and one offset."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "lines") -> None:
        self._spark, self._folder, self._name = spark, folder, name
        self._written = len(list(folder.glob("in/[0-9]*.txt")))
        self.checkpoint = folder / "checkpoint"
        (folder / "in").mkdir(exist_ok=True, parents=True)

    def write(self) -> int:
        """Writes one more file; returns the mark that says that it was processed."""
        self._written += 1
        hidden = self._folder / "in" / f"_{self._written:04d}.txt"  # else Spark may find it under both names
        hidden.write_text("a line\n")
        hidden.rename(hidden.with_name(hidden.name.removeprefix("_")))
        return self._written

    def start(self) -> StreamingQuery:
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._folder / "in"))
        writer = lines.writeStream.format("noop").queryName(self._name)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()


def mark_of(client: Client, name: tuple[str, int] = LINES) -> tuple[int, int] | None:
    try:
        found = client.partition(name)
    except NotFound:
        return None
    return found.leader_epoch, found.high_watermark


OFFSETS = Path(__file__).with_name("offsets.txt")


def test_end_offsets_are_exclusive_marks() -> None:
    """As in offsets.txt."""
    assert_values_recorded(OFFSETS, {"marks_of": marks_of, "ends_of_log": ends_of_log})


def test_a_folder_that_is_no_checkpoint_says_nothing(tmp_path: Path) -> None:
    """No commits, or damaged ones: nothing unknown is published."""
    assert committed_marks(str(tmp_path / "nothing")) == {}
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").write_text("v1\n{}")
    assert committed_marks(str(tmp_path)) == {}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n{nonsense\n")
    assert committed_marks(str(tmp_path)) == {}


async def handed_over(source: QuerySource) -> tuple[SourceState, dict[str, int]]:
    """The state and the marks that a source gives its publisher next."""
    reports: asyncio.Queue[SourceState] = asyncio.Queue()
    marks: dict[str, int] = {}

    class Feeding:
        def observe(self, observations: list[Observation]) -> None:
            marks.update({seen.topic: seen.offset or 0 for seen in observations})

        def report(self, state: SourceState, why: str = "") -> None:
            reports.put_nowait(state)

    task = asyncio.create_task(source.run(cast("Publisher", Feeding())))
    async with asyncio.timeout(PATIENCE_S):
        state = await reports.get()
    task.cancel()
    return state, marks


async def test_a_checkpoint_read_too_late_says_nothing_of_the_query_that_has_the_name_now() -> None:
    """It does not make a stopped query live either; a running query uses it."""
    source = QuerySource("lines")
    source.started("first")
    source.started("second")
    source.had_committed({("source0", 0): 9}, "first")
    assert await handed_over(source) == (SourceState.LOADING, {})
    source.had_committed({("source0", 0): 2}, "second")
    assert await handed_over(source) == (SourceState.LIVE, {"spark/lines/source0": 2})
    source.stopped("the query has stopped")
    source.had_committed({("source0", 0): 3}, "second")
    assert await handed_over(source) == (SourceState.STALE, {"spark/lines/source0": 2})
    source.started("second")
    assert await handed_over(source) == (SourceState.LIVE, {"spark/lines/source0": 2})


def test_a_wait_is_answered_when_the_batch_with_my_line_is_committed(
    spark: SparkSession, listen: Callable[..., PurgatoryListener], daemon: RunningDaemon, tmp_path: Path
) -> None:
    """It is not answered before, and not for a line that was never written. The marks of a stopped query are stale; its
    checkpoint has the same ones as its progress.
    """
    listen(daemon.address)
    job = LinesJob(spark, tmp_path)
    client = daemon.client
    query = job.start()
    for _ in range(3):
        assert client.produce({LINES: job.write()}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED
    assert client.produce({LINES: 4}, timeout=0.2).outcome is Outcome.EXPIRED
    progress = query.lastProgress or query.recentProgress[-1]
    query.stop()
    ends = [json.dumps(source["endOffset"]) for source in json.loads(progress.json)["sources"]]
    assert committed_marks(str(job.checkpoint)) == marks_of(ends) == {("source0", 0): 3}
    stale = client.produce({LINES: 4}, timeout=PATIENCE_S, fail_when_stale=0.5)
    assert stale.outcome is Outcome.FAILED
    assert "has stopped" in stale.partitions["spark/lines/source0-0"].stale_reason


def test_the_marks_of_a_query_that_failed_are_stale_with_the_cause(
    spark: SparkSession, listen: Callable[..., PurgatoryListener], daemon: RunningDaemon, tmp_path: Path
) -> None:
    listen(daemon.address)

    def fail_on_second(_frame: DataFrame, batch: int) -> None:
        if batch:
            raise ValueError("no such customer: 7")

    job = LinesJob(spark, tmp_path)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    client = daemon.client
    writer = lines.writeStream.foreachBatch(fail_on_second).queryName("lines")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    client.produce({LINES: job.write()}, timeout=PATIENCE_S)
    job.write()
    stale = client.produce({LINES: 2}, timeout=PATIENCE_S, fail_when_stale=0.1)
    reason = stale.partitions["spark/lines/source0-0"].stale_reason
    assert reason == "the query failed: ValueError: no such customer: 7"


def test_a_restart_with_nothing_new_tells_what_was_committed(
    spark: SparkSession, listen: Callable[..., PurgatoryListener], daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Spark sends no event, so a new listener reads the checkpoint and publishes to a new daemon."""
    job = LinesJob(spark, tmp_path)
    for _ in range(2):
        job.write()
    listener = listen(daemon.address)
    query = job.start()
    daemon.client.produce({LINES: 2}, timeout=PATIENCE_S)
    query.stop()
    spark.streams.removeListener(listener)
    with daemon_in_process("--shutdown-grace-ms", "100") as second:
        listen(second.address)
        job.start()
        assert second.client.produce({LINES: 2}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED


def test_a_query_that_starts_anew_is_a_new_lineage(
    spark: SparkSession, listen: Callable[..., PurgatoryListener], daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Without its checkpoint it reads all again: the new lineage does not end waits that named the old one."""
    listen(daemon.address)
    first = LinesJob(spark, tmp_path / "first")
    again = LinesJob(spark, tmp_path / "again")
    client = daemon.client
    query = first.start()
    for _ in range(3):
        client.produce({LINES: first.write()}, timeout=PATIENCE_S)
    query.stop()
    epoch, _ = mark_of(client) or (-1, -1)
    again.write()
    again.start()
    wait_until(lambda: mark_of(client) == (epoch + 1, 1))
    result = client.produce({LINES: 1}, leader_epochs=epoch, timeout=PATIENCE_S)
    assert result.partitions["spark/lines/source0-0"].error_code == 74
    assert client.produce({LINES: 1}, leader_epochs=epoch + 1, timeout=PATIENCE_S).outcome is Outcome.SATISFIED


def test_a_daemon_that_hangs_or_dies_never_holds_up_a_query(
    spark: SparkSession,
    listen: Callable[..., PurgatoryListener],
    start_daemon: StartDaemon,
    daemon: RunningDaemon,
    tmp_path: Path,
) -> None:
    """Another daemon receives the marks of every batch. A daemon that hung, or one that replaces a dead one, receives
    the latest marks.
    """
    hung, second = start_daemon(), daemon.client
    listen(hung.address, daemon.address)
    job = LinesJob(spark, tmp_path)
    with Client(hung.address) as first:
        job.start()
        for client in (first, second):
            client.produce({LINES: 1 if client is second else job.write()}, timeout=PATIENCE_S)
        os.kill(hung.process.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                assert second.produce({LINES: job.write()}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED
        finally:
            os.kill(hung.process.pid, signal.SIGCONT)
        assert first.produce({LINES: 4}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED
        hung.kill()
        assert second.produce({LINES: job.write()}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED
    back = start_daemon("--grpc-address", hung.address)
    with Client(back.address) as client:
        assert client.produce({LINES: 5}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED


def test_queries_are_told_apart_and_nameless_ones_left_out(
    spark: SparkSession, listen: Callable[..., PurgatoryListener], daemon: RunningDaemon, tmp_path: Path
) -> None:
    listen(daemon.address)
    one, two = LinesJob(spark, tmp_path / "one", "one"), LinesJob(spark, tmp_path / "two", "two")
    nameless = spark.readStream.format("rate").load().writeStream.format("noop").start()
    one.start()
    two.start()
    client = daemon.client
    for _ in range(2):
        client.produce({("spark/one/source0", 0): one.write()}, timeout=PATIENCE_S)
    client.produce({("spark/two/source0", 0): two.write()}, timeout=PATIENCE_S)
    wait_until(lambda: bool(nameless.lastProgress))
    known = {partition.topic: partition.high_watermark for partition in client.partitions(prefix="spark/")}
    assert known == {"spark/one/source0": 2, "spark/two/source0": 1}


def test_a_number_that_a_query_observes_as_a_mark_is_waited_for(
    spark: SparkSession, listen: Callable[..., PurgatoryListener], daemon: RunningDaemon, tmp_path: Path
) -> None:
    """A wait for version 7 of the query's input is satisfied by the micro-batch that has read it."""
    listen(daemon.address)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("6\n7\n")
    version = F.max(F.col("value").cast("long")).alias("version")
    lines = spark.readStream.text(str(tmp_path / "in")).observe("marks", version)
    lines.writeStream.format("noop").queryName("lines").option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).start()
    assert daemon.client.produce({("spark/lines/version", 0): 7}, timeout=PATIENCE_S).outcome is Outcome.SATISFIED


def test_the_nightly_batch_has_the_whole_day(spark: SparkSession, tmp_path: Path) -> None:
    """One wait over a restart of the daemon: the batch runs once the last file of the day is in its table."""
    told: list[str] = []
    rows, amount = asyncio.run(nightly_batch.run(spark, tmp_path, told.append))
    files, a_file = nightly_batch.FILES_A_DAY, nightly_batch.ROWS_A_FILE
    assert (rows, amount) == (files * a_file, files * sum(range(a_file)))
    assert len(told) == 4


def test_the_web_handler_reads_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    with (
        daemon_in_process("--shutdown-grace-ms", "100") as daemon,
        own_write.own_write_app(spark, tmp_path, daemon.address) as address,
    ):
        totals = own_write.shop(address, told.append)
    assert totals == [10 * number for number in range(1, own_write.ORDERS + 1)]
    assert len(told) == own_write.ORDERS
