"""What keeps an archive gives way to all else, until it falls behind."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from purgatory.archive.frames import framed, read_frame
from purgatory.archive.keeping_process import LAG_MAX_S, Turns


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such policy")
def test_it_gives_way_until_it_lags_behind() -> None:
    """Work is done by a thread to which all else comes first; work that has waited for long, by one like any other."""
    policies: list[int] = []
    turns = Turns(gives_way=True)
    for lag_s in (0.0, LAG_MAX_S + 1, 0.0):
        turns.do(lambda: policies.append(os.sched_getscheduler(0)), lag_s=lag_s)
    assert policies == [os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_IDLE]


def test_where_nothing_may_be_lost_it_never_gives_way() -> None:
    """One thread, like any other."""
    before = os.sched_getscheduler(0)
    policies: list[int] = []
    turns = Turns(gives_way=False)
    for lag_s in (0.0, LAG_MAX_S + 1):
        turns.do(lambda: policies.append(os.sched_getscheduler(0)), lag_s=lag_s)
    assert policies == [before] * 2


def test_what_its_work_raises_is_raised() -> None:
    """A disk that fails at the end is not swallowed by a thread."""

    def fail(message: str) -> None:
        raise OSError(message)

    with pytest.raises(OSError, match="no space"):
        Turns(gives_way=True).do(fail, "no space left")


@pytest.mark.parametrize("kept", [0, 3, 9, 20, -1])
def test_a_frame_that_was_cut_is_none(tmp_path: Path, kept: int) -> None:
    """A daemon that dies while it writes leaves half a frame: what was whole is read, the rest is the end."""
    path = tmp_path / "frames"
    with path.open("wb") as file:
        file.writelines(framed(["first", {"a": 1}]))
        whole = file.tell()
        file.writelines(framed(["second"]))
    content = path.read_bytes()
    end = len(content) - 1 if kept < 0 else whole + kept
    stream = io.BytesIO(content[:end])
    frame = read_frame(stream)
    assert frame is not None
    assert frame.unpacked() == ["first", {"a": 1}]
    assert read_frame(stream) is None
