"""Tables of an archive as DataFrames: columns, windows, topics, and odd names of folders."""

from datetime import timedelta
from pathlib import Path

import pytest
from purgatory_pipeline.archive.catalog import find_archive, spark_schema
from pyspark.sql import SparkSession

from purgatory.engine.calls import CancelAll, CancelName
from purgatory.extensions.archive import schema
from tests.pipeline.archive.histories import START, History, small_history

pytestmark = pytest.mark.slow  # each asks Spark


def test_every_table_reads_with_its_own_columns_from_any_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Spaces, percent signs and the characters of Spark's path patterns have no special meaning in its name."""
    history = small_history()
    root = tmp_path / "a [b]{c}* d%20é"
    history.write(root, rows_per_file=7)
    archive = find_archive(str(root))
    for table in schema.TABLES:
        frame = archive.read(spark, table)
        assert frame.schema == spark_schema(table)
        assert frame.count() == len(history.rows[table]) == archive.rows(table)


def test_window_takes_its_start_and_not_its_end(spark: SparkSession, tmp_path: Path) -> None:
    """Rows with since <= at < until are read from any number of files; naive instants are UTC."""
    small_history().write(tmp_path, rows_per_file=3)
    since, until = START + timedelta(milliseconds=50), START + timedelta(milliseconds=120)
    archive = find_archive(str(tmp_path))
    for start, end in ((since, until), (since.replace(tzinfo=None), until.replace(tzinfo=None))):
        frame = archive.read(spark, schema.REGISTRATIONS, ["time_ms"], since=start, until=end)
        assert sorted(row.time_ms for row in frame.collect()) == [50, 60, 70, 80, 90, 100, 110]


def test_topics_keep_rows_without_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    """Only rows of the given topics and rows without a topic are read: a session's end counts for every topic."""
    history = History()
    for place, topic in enumerate(("orders", "payments", "orders", "key-7")):
        history.register(place + 1, topic=topic)
    history.add(schema.CALLS, 9, call=schema.CALL_NAMES[CancelAll])
    history.add(schema.CALLS, 9, call=schema.CALL_NAMES[CancelName], topic="key-7")
    history.add(schema.CALLS, 9, call=schema.CALL_NAMES[CancelName], topic="key-8")
    history.write(tmp_path)
    archive = find_archive(str(tmp_path))
    registered = archive.read(spark, schema.REGISTRATIONS, topics=["orders", "key-7"])
    assert sorted(row.operation_id for row in registered.collect()) == [1, 3, 4]
    calls = archive.read(spark, schema.CALLS, topics=["orders", "key-7"])
    assert sorted(row.call for row in calls.collect()) == [schema.CALL_NAMES[CancelAll], schema.CALL_NAMES[CancelName]]
