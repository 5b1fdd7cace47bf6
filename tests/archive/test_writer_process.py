"""The writer process: its priority, what it reads of a daemon that died, and that only the daemon ends it."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from purgatory.archive.writer_process import NICENESS, LineOutput, serve
from purgatory.archive.writer_protocol import decode_frame, encode_frame, read_frame
from tests.archive.archive_kit import NOWHERE


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness belongs to a process")
@pytest.mark.parametrize("low_priority", [True, False])
def test_rows_and_files_are_made_at_the_priority_asked_for(tmp_path: Path, low_priority: bool) -> None:
    """On Linux a thread has a niceness of its own; where nothing may be dropped it is that of the daemon."""
    config = NOWHERE._replace(place=str(tmp_path), low_priority=low_priority)
    niceness: list[int] = []

    def run() -> None:
        assert serve(io.BytesIO(encode_frame(config)), LineOutput(io.BytesIO()))
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness == [min(19, before + NICENESS) if low_priority else before]


@pytest.mark.parametrize("kept", [0, 3, 9, 20, -1])
def test_a_frame_that_was_cut_is_the_end(kept: int) -> None:
    """A daemon that dies while it writes leaves half a frame: what was whole is read."""
    whole = encode_frame(["first", {"a": 1}])
    second = encode_frame(["second"])
    stream = io.BytesIO(whole + second[: kept if kept >= 0 else len(second) - 1])
    frame = read_frame(stream)
    assert frame is not None
    assert decode_frame(frame) == ["first", {"a": 1}]
    assert read_frame(stream) is None
