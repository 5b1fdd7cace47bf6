"""The writer process and the link to it: sending never blocks, order is kept, losses are reported, and only the daemon
ends the process.
"""

import io
import os
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from purgatory.engine.calls import CancelName
from purgatory.extensions.archive import vocabulary
from purgatory.extensions.archive.records import row_record
from purgatory.extensions.archive.vocabulary import CallStamp
from purgatory.extensions.archive.writer_process import NICENESS, LineOutput, serve
from purgatory.extensions.archive.writer_protocol import WriterConfig, decode_frame, encode_frame, read_frame
from tests.archive.archive_kit import CLOSE_S, NOWHERE, RUN, ThreadLink
from tests.kit.eventually import eventually


class NotingProcess:
    """A fake writer process: records what it receives once `may_read` is set, and dies after `dies_after` frames."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.may_read = threading.Event()
        self.config: WriterConfig | None = None
        self.rows: list[tuple[int, dict[str, Any]]] = []
        """Received calls: number and values."""
        self._dies_after = dies_after

    def serve(self, frames: BinaryIO, output: LineOutput) -> bool:
        first = read_frame(frames)
        assert first is not None, "the configuration comes first"
        self.config = decode_frame(first)
        assert self.config is not None, "a configuration"
        output.report(self.config.statistics)
        self.may_read.wait(CLOSE_S)
        while len(self.rows) != self._dies_after and (frame := read_frame(frames)) is not None:
            for record in decode_frame(frame)[1]:
                self.rows.append((record.stamp.call_number, record.extra))
        return self._dies_after is None


async def linked(*processes: NotingProcess) -> ThreadLink:
    link = ThreadLink(NOWHERE, *(process.serve for process in processes))
    await link.start()
    return link


def send(link: ThreadLink, number: int, size: int = 0) -> None:
    """Send a call with this number, in a frame of at least this size."""
    stamp = CallStamp(RUN, number, 5, 6)
    record = row_record(vocabulary.CALLS, stamp, call=vocabulary.CALL_NAMES[CancelName], topic="k" * size, ended=number)
    link.send((), [record])


def nothing() -> None:
    """Everything was sent already."""


async def test_a_full_pipe_is_not_waited_for() -> None:
    process = NotingProcess()
    link = await linked(process)
    for number in range(1, 101):
        send(link, number, size=50_000)  # nothing is read yet: if this blocked, it would block forever
    process.may_read.set()
    await eventually(lambda: len(process.rows) == 100, "all that waited has been read")
    for number in range(101, 111):
        send(link, number)
    assert await link.close(CLOSE_S, nothing)
    assert [number for number, _ in process.rows] == list(range(1, 111))
    assert {len(row["topic"]) for _, row in process.rows[:100]} == {50_000}


async def test_another_process_goes_on_and_records_what_was_lost() -> None:
    def dies_at_once(frames: BinaryIO, output: LineOutput) -> bool:
        output.write({"unusable": "no room"})
        return read_frame(frames) is None

    first, second = NotingProcess(dies_after=2), NotingProcess()
    for process in (first, second):
        process.may_read.set()
    link = ThreadLink(NOWHERE, first.serve, dies_at_once, second.serve)
    await link.start()
    send(link, 1)
    send(link, 2)
    await eventually(lambda: link.errors == 2, "the first has died, and another one could not open the archive")
    assert not link.is_up
    await eventually(lambda: link.is_up, "another one goes on")
    assert second.config is not None
    assert second.config.is_continued
    send(link, 3)
    send(link, 4)
    assert await link.close(CLOSE_S, nothing)
    (marked, marker), *others = second.rows
    assert (marked, marker["marker"], marker["table"], marker["rows"]) == (1, vocabulary.DROPPED, vocabulary.CALLS, 2)
    assert marker["last_call_number"] == 2
    assert [number for number, _ in others] == [3, 4]
    assert link.rows_lost[vocabulary.CALLS] == 2


async def test_what_waited_for_a_process_that_died_is_recorded_as_lost() -> None:
    """The pipe was full when the process died: each call is either counted in a marker or sent to the next process."""
    first, second = NotingProcess(dies_after=1), NotingProcess()
    second.may_read.set()
    link = await linked(first, second)
    for number in range(1, 201):
        send(link, number, size=50_000)
    first.may_read.set()
    await eventually(lambda: bool(second.rows), "another one goes on")
    send(link, 201)
    assert await link.close(CLOSE_S, nothing)
    (first_lost, marker), *others = second.rows
    assert (first_lost, marker["last_call_number"], marker["rows"]) == (1, 200, 200)
    assert [number for number, _ in others] == [201]


async def test_an_end_that_takes_too_long_is_given_up() -> None:
    process = NotingProcess()
    link = await linked(process)
    send(link, 1)
    closing = link.close(0.01, nothing)
    timer = threading.Timer(0.1, process.may_read.set)  # the thread in place of a process cannot be killed
    timer.start()
    assert not await closing
    timer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness belongs to a process")
@pytest.mark.parametrize("low_priority", [True, False])
def test_rows_and_files_are_made_at_the_priority_asked_for(tmp_path: Path, low_priority: bool) -> None:
    """On Linux, niceness belongs to a thread. With `strict`, the writer has the daemon's own niceness."""
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
    whole = encode_frame(["first", {"a": 1}])
    second = encode_frame(["second"])
    stream = io.BytesIO(whole + second[: kept if kept >= 0 else len(second) - 1])
    frame = read_frame(stream)
    assert frame is not None
    assert decode_frame(frame) == ["first", {"a": 1}]
    assert read_frame(stream) is None
