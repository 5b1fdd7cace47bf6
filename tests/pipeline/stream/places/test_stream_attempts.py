"""Two attempts of one task of a stream that write at the same time, as with speculation or a lost executor."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.stream.shard_task import write_part

from tests.client.test_blocking import environment

ATTEMPT = """
import sys
from tests.pipeline.stream.places.test_stream_attempts import many_rows, write_part
write_part(sys.argv[1], 7, 3, many_rows())
"""


def many_rows() -> pa.Table:
    """Enough for an attempt to be stopped while it writes them, and always the same, as those of a repeated task."""
    numbers = pa.array(range(2_000_000), pa.int64())
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
            pass
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
