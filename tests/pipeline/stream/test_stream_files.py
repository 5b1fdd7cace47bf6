"""The files of a stream: input that is broken or cannot be read, two attempts of one task, and an object store."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.location import open_location, write_file
from purgatory_pipeline.stream.endpoints import StreamOutput
from purgatory_pipeline.stream.payloads import file_packer, unpacked
from purgatory_pipeline.stream.shard_state import ShardLayout, saved_layout, write_layout
from purgatory_pipeline.stream.shard_task import LATE, OUTCOMES, write_part
from purgatory_pipeline.stream.wire_records import EVENT, MALFORMED
from pyarrow import fs

from tests.client.test_blocking import environment
from tests.pipeline.stream.simulated_history import listed


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    ("path", "error"), [("missing", FileNotFoundError), ("folder", OSError), ("/proc/self/mem", OSError)]
)
def test_an_io_error_fails_the_task(tmp_path: Path, path: str, error: type[OSError], *, is_json: bool) -> None:
    """Spark retries it, and commits nothing without the file. /proc/self/mem can be opened, but reading it fails."""
    (tmp_path / "folder").mkdir()
    pack = file_packer(2, EVENT, is_json=is_json)
    with pytest.raises(error, match=r"missing|folder|Input/output error"):
        list(pack([listed(tmp_path, tmp_path / path)]))


@pytest.mark.parametrize(
    ("content", "is_json"),
    [(b"PAR1 and nothing else", False), (b"", False), (b"PAR1" + b"\xff" * 100 + b"PAR1", False), (b"\xff\xfe", True)],
)
def test_broken_content_is_malformed_and_other_files_count(tmp_path: Path, content: bytes, *, is_json: bool) -> None:
    paths = [tmp_path / "broken", tmp_path / "whole"]
    paths[0].write_bytes(content)
    if is_json:
        paths[1].write_bytes(b'{"at": 5}')
    else:
        pq.write_table(pa.table({"at": pa.array([5], pa.timestamp("ms", tz="UTC"))}), paths[1])
    (batch,) = file_packer(1, EVENT, is_json=is_json)([listed(tmp_path, *paths)])
    assert batch.column("seen_ms").to_pylist() == [5]
    assert unpacked(batch.column("malformed").to_pylist(), MALFORMED).num_rows == 1


ATTEMPT = """
import sys
from tests.pipeline.stream.test_stream_files import many_rows, write_part
write_part(sys.argv[1], 7, 3, many_rows())
"""


def many_rows() -> pa.Table:
    """Enough for an attempt to be stopped while it writes them, and always the same, as those of a repeated task."""
    numbers = pa.array(np.arange(2_000_000))
    return pa.table({f"column_{i}": numbers for i in range(4)})


def bytes_written(process_id: int, folder: Path) -> int:
    """The size of the file in the folder that a process has open."""
    with contextlib.suppress(OSError):  # the file was closed, or the process has ended
        opened = [one for one in Path(f"/proc/{process_id}/fd").iterdir() if one.readlink().is_relative_to(folder)]
        return max((one.stat().st_size for one in opened), default=0)
    return 0


def writing_attempt(folder: Path, bytes_min: int) -> subprocess.Popen[bytes]:
    """An attempt that has written a part of its file, and is stopped."""
    while True:
        attempt = subprocess.Popen([sys.executable, "-c", ATTEMPT, str(folder)], env=environment())
        while attempt.poll() is None and bytes_written(attempt.pid, folder) < bytes_min:
            time.sleep(0.001)
        attempt.send_signal(signal.SIGSTOP)
        if bytes_written(attempt.pid, folder):
            return attempt
        attempt.send_signal(signal.SIGCONT)  # it was too fast
        attempt.wait()


@pytest.mark.slow  # starts two processes that write 70 MB each
def test_part_is_whole_when_another_attempt_is_killed(tmp_path: Path) -> None:
    with writing_attempt(tmp_path, 10_000_000) as first, writing_attempt(tmp_path, 1) as second:
        first.send_signal(signal.SIGCONT)
        assert first.wait() == 0
        second.kill()
    part = tmp_path / "batch=00000007" / "shard-00003.parquet"
    assert pq.read_table(part).equals(many_rows())
    assert pyarrow.dataset.dataset(tmp_path).files == [str(part)]
    write_part(str(tmp_path), 7, 3, many_rows().slice(0, 1))
    assert pq.read_table(part).num_rows == 1


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
        layout.load(1, 1, 0)


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
