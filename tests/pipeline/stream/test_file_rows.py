"""Files as rows of a stream: broken content is set aside, and an I/O error fails the task."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from purgatory_pipeline.stream.payloads import file_packer, unpacked
from purgatory_pipeline.stream.wire_records import EVENT, MALFORMED

from tests.pipeline.stream.stream_folders import listed


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    ("path", "error"),
    [("missing", FileNotFoundError), ("folder", OSError), ("/proc/self/mem", OSError)],
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
def test_broken_content_is_malformed(tmp_path: Path, content: bytes, *, is_json: bool) -> None:
    """The reason is given, and the other files of the micro-batch count."""
    paths = [tmp_path / "broken", tmp_path / "whole"]
    paths[0].write_bytes(content)
    if is_json:
        paths[1].write_bytes(b'{"at": 5}')
    else:
        pa.parquet.write_table(pa.table({"at": pa.array([5], pa.timestamp("ms", tz="UTC"))}), paths[1])
    (batch,) = file_packer(1, EVENT, is_json=is_json)([listed(tmp_path, *paths)])
    assert batch.column("seen_ms").to_pylist() == [5]
    assert unpacked(batch.column("malformed").to_pylist(), MALFORMED).num_rows == 1
