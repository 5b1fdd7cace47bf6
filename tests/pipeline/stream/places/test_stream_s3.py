"""What a stream keeps on an object store: nothing relies on moving a folder, and a query in the URI is kept."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.streaming.stream.driver_shard import STATES, DriverShard, SavedStates
from purgatory_pipeline.streaming.stream.payloads import payload
from purgatory_pipeline.streaming.stream.shard.stream_rows import ROWS
from purgatory_pipeline.streaming.stream.shard_seeds import Division, newest_division, write_division
from purgatory_pipeline.streaming.stream.shard_step import LATE, OUTCOMES
from purgatory_pipeline.streaming.stream.stream_outputs import StreamOutput, write_part
from purgatory_pipeline.streaming.stream.wire_records import MALFORMED
from pyarrow import fs

from purgatory.engine.codes import PRODUCE


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of an S3 server on this machine, as a URI without its query; `{}` is where a path goes."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        uri = f"s3://lake/{{}}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        filesystem, _ = fs.FileSystem.from_uri(f"{uri.format('')}&allow_bucket_creation=true")
        filesystem.create_dir("lake")
        yield uri
    server.stop()


def waits(first_id: int, count: int) -> pa.Table:
    """A payload of operations for which nothing comes."""
    wait = {"at_ms": 1_000, "kind": PRODUCE, "timeout_ms": 9_000, "item": 0, "item_count": 1, "topic": "t", "offset": 5}
    rows = [wait | {"operation_id": first_id + number, "partition": 0} for number in range(count)]
    table = pa.Table.from_pylist(rows, schema=ROWS)
    return pa.Table.from_batches([payload(table, MALFORMED.empty_table(), 1)])


def test_a_child_of_a_place_keeps_the_query(bucket: str) -> None:
    """Spark's name has none, and begins with s3a."""
    place = open_location(bucket.format("stream")).child("_checkpoint").child("shards")
    assert place.root == open_location(place.uri).root == "lake/stream/_checkpoint/shards"
    assert place.uri == bucket.format("stream/_checkpoint/shards")
    assert place.spark_uri == "s3a://lake/stream/_checkpoint/shards"
    assert place.path_of("s3a://lake/stream/a%20b.parquet") == "lake/stream/a%20b.parquet"
    local = open_location("/tmp/a b").child("c")
    assert (local.uri, local.spark_uri, local.path_of("file:/tmp/x y")) == (
        "/tmp/a b/c",
        "file:///tmp/a b/c",
        "/tmp/x y",
    )


def test_shards_of_a_stream_are_divided_on_an_object_store(bucket: str) -> None:
    """A division counts once its last file is there; the leftovers of an incomplete attempt are replaced."""
    checkpoint = bucket.format("divided/_checkpoint")
    assert newest_division(checkpoint) is None
    assert write_division(checkpoint, 0, [b""] * 2) == newest_division(checkpoint) == Division(checkpoint, 0, 2)
    place = open_location(checkpoint).child("shards/00000001")
    place.filesystem.create_dir(place.root, recursive=True)
    with place.filesystem.open_output_stream(place.child("shard-00007").root) as stream:
        stream.write(b"of an attempt that was killed")
    assert newest_division(checkpoint) == Division(checkpoint, 0, 2)
    divided = write_division(checkpoint, 1, [b"a", b"b", b"c"])
    assert newest_division(checkpoint) == divided == Division(checkpoint, 1, 3)
    assert [divided.read(shard) for shard in range(3)] == [b"a", b"b", b"c"]
    assert open_location(checkpoint).child("shards").names() == ["00000001"]


def test_a_shard_on_the_driver_keeps_its_state_on_an_object_store(bucket: str) -> None:
    """Snapshots and rows are written, found by the next process, and dropped when they are not needed any more."""
    folder = open_location(bucket.format("driver/_checkpoint")).child(STATES).uri
    shard = DriverShard(folder, 0)
    for batch in range(3):
        shard.play(waits(1_000 * batch + 1, 10 if batch else 900), batch)
        shard.commit(batch)
    assert DriverShard(folder, 0).play(waits(5_000, 1), 3).pending == 921
    states = SavedStates(folder)
    assert (list(states.snapshots), list(states.rows)) == ([0], [1, 2])
    DriverShard(folder, 0).play(waits(5_000, 1), 2)
    assert list(SavedStates(folder).rows) == [1]


def test_outcomes_on_an_object_store_are_replaced_by_their_batch(bucket: str) -> None:
    """What an earlier run wrote of a batch that it did not commit goes first, and nothing else does."""
    results = bucket.format("results")
    output = StreamOutput(results, bucket.format("aside"))
    rows = pa.table({"operation_id": [1, 2]})
    for table, batch in ((OUTCOMES, 6), (OUTCOMES, 7), (LATE, 7)):
        folder = open_location(results if table == OUTCOMES else bucket.format("aside")).child(table)
        write_part(folder.uri, batch, 3, rows)
    output.clear(7)
    place = open_location(results).child(OUTCOMES)
    assert place.names() == ["batch=00000006"]
    assert open_location(bucket.format("aside")).child(LATE).names() == []
    file = place.child("batch=00000006/shard-00003.parquet")
    assert pq.read_table(file.root, filesystem=file.filesystem).num_rows == 2
