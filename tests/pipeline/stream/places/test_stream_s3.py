"""The files of a stream on an object store: no folder is moved, and a query in the URI is kept."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.location import open_location, write_file
from purgatory_pipeline.stream.endpoints import StreamOutput
from purgatory_pipeline.stream.shard_state import ShardLayout, saved_layout, write_layout
from purgatory_pipeline.stream.shard_task import LATE, OUTCOMES, write_part
from pyarrow import fs


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


def test_layouts_and_states_of_a_stream_on_an_object_store(bucket: str) -> None:
    """A layout counts once `complete` exists; files of an incomplete attempt are replaced. The last two states of
    a shard are kept.
    """
    checkpoint = bucket.format("layout/_checkpoint")
    write_file(open_location(checkpoint), "shards/00000000-00007", b"of an attempt that was killed")
    assert saved_layout(checkpoint) is None
    layout = write_layout(checkpoint, 2)
    assert saved_layout(checkpoint) == layout == ShardLayout(checkpoint, 2)
    folder = open_location(checkpoint).child("shards")
    for batch in range(3):
        shard = layout.load(1, batch, delay_ms=0)
        shard.play(pa.table({"at_ms": [batch]}))
        layout.save(shard, batch + 1)
    assert folder.names() == ["00000000-00000", "00000002-00001", "00000003-00001", "complete"]
    assert [layout.load(1, batch, 0).horizon_ms for batch in (2, 3)] == [1, 2]
    with pytest.raises(PipelineError, match="no state of shard 1 before micro-batch 1"):
        layout.read(1, 1)


def test_outcomes_on_an_object_store_are_replaced_by_their_batch(bucket: str) -> None:
    results = bucket.format("results")
    output = StreamOutput(results, bucket.format("quarantine"))
    rows = pa.table({"operation_id": [1, 2]})
    for table, batch in ((OUTCOMES, 6), (OUTCOMES, 7), (LATE, 7)):
        folder = open_location(results if table == OUTCOMES else bucket.format("quarantine")).child(table)
        write_part(folder.uri, batch, 3, rows)
    output.clear(7)
    place = open_location(results).child(OUTCOMES)
    assert place.names() == ["batch=00000006"]
    assert open_location(bucket.format("quarantine")).child(LATE).names() == []
    file = place.child("batch=00000006/shard-00003.parquet")
    assert pq.read_table(file.root, filesystem=file.filesystem).num_rows == 2
