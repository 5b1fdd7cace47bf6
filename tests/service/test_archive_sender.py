"""Sending history to what keeps it: nothing waits for it, nothing changes its order, and what is lost is told."""

from __future__ import annotations

import threading
from typing import Any, BinaryIO

import pytest

from purgatory.archive import words
from purgatory.archive.calls import CallStamp, call_values
from purgatory.archive.frames import read_frame
from purgatory.archive.keeping_process import Teller
from purgatory.archive.opening import KeeperStatistics, Opening
from purgatory.archive.packing import Chunk, Packer
from purgatory.service.listeners.archive_room import Room
from purgatory.service.listeners.archive_sender import ArchiveSender, Sent
from tests.service.archive_kit import CLOSE_S, ThreadLink
from tests.service.serving import eventually

RUN = "run-a"
NOTHING = dict.fromkeys(words.TABLES, 0)
OPENING = Opening("nowhere", RUN, "here", 1, 0, 0, "{}", 60.0, 1 << 20, 1_000, 1, gives_way=False)


class Listener:
    """What keeps, in name only: it notes what comes, once it `may_read`, and dies after `dies_after` frames."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.may_read = threading.Event()
        self.opening: Opening | None = None
        self.rows: list[tuple[int, dict[str, Any]]] = []
        """Calls that came: their numbers, and what they said."""
        self._dies_after = dies_after

    def keep(self, frames: BinaryIO, teller: Teller) -> bool:
        first = read_frame(frames)
        assert first is not None, "the opening comes first"
        self.opening = first.unpacked()
        assert self.opening is not None, "an opening"
        teller.statistics(self.opening.kept or KeeperStatistics(0, NOTHING, NOTHING, 0, 0, 0, 0, 0, 0, {}))
        self.may_read.wait(CLOSE_S)
        while len(self.rows) != self._dies_after and (frame := read_frame(frames)) is not None:
            chunk: Chunk = frame.unpacked()
            numbers = memoryview(chunk.numbers).cast("q")
            self.rows.append((numbers[2], chunk.extras[0]))
        return self._dies_after is None


class Sending:
    """A sender whose keepers are these listeners, one after the other."""

    def __init__(self, *listeners: Listener) -> None:
        self.room = Room(10_000, strict=False)
        waiting = iter(listeners)
        self.sender = ArchiveSender(self.room, OPENING, lambda: ThreadLink(next(waiting).keep), retry_s=0.01)
        self.sender.start()

    def send(self, number: int, size: int = 0) -> None:
        """A call of this number, in a frame of at least this size."""
        packer = Packer()
        packer.begin_call(CallStamp(RUN, number, 5, 6))
        packer.add_row(words.CALLS, call_values(words.CANCEL_KEY, topic="k" * size, ended=number))
        self.room.force(1)
        self.sender.send(packer.take(), Sent(CallStamp(RUN, number, 5, 6), number, dict(packer.rows)))


async def test_a_full_pipe_is_not_waited_for() -> None:
    """Far more than a pipe holds is sent at once; all of it arrives, in order, and what comes after it too."""
    listener = Listener()
    sending = Sending(listener)
    for number in range(1, 101):
        sending.send(number, size=50_000)  # nobody reads yet: if this waited, it would be for ever
    listener.may_read.set()
    await eventually(lambda: len(listener.rows) == 100, "all that waited has been read")
    for number in range(101, 111):
        sending.send(number)
    assert sending.sender.close(CLOSE_S)
    assert [number for number, _ in listener.rows] == list(range(1, 111))
    assert {len(row["topic"]) for _, row in listener.rows[:100]} == {50_000}


async def test_another_keeper_goes_on_and_tells_what_was_lost() -> None:
    """What was sent and never told of has a marker; what comes later is sent to the next one."""
    first, second = Listener(dies_after=2), Listener()
    for listener in (first, second):
        listener.may_read.set()
    sending = Sending(first, second)
    sending.send(1)
    sending.send(2)
    await eventually(lambda: second.opening is not None, "the first has died, and another one goes on")
    assert second.opening is not None
    assert second.opening.kept is not None
    sending.send(3)
    assert sending.sender.close(CLOSE_S)
    (marked, marker), *others = second.rows
    assert (marked, marker["marker"], marker["table"], marker["rows"]) == (1, words.DROPPED, words.CALLS, 2)
    assert marker["last_call_number"] == 2
    assert [number for number, _ in others] == [3]
    assert sending.sender.statistics().rows_dropped[words.CALLS] == 2
    assert sending.sender.statistics().errors == 1


@pytest.mark.parametrize("read", [0, 1])
async def test_what_could_not_be_begun_goes_to_the_next_keeper(read: int) -> None:
    """The pipe was full when the first one died: of what waited, only the frame that was half written is lost."""
    first, second = Listener(dies_after=read), Listener()
    second.may_read.set()
    sending = Sending(first, second)
    for number in range(1, 201):
        sending.send(number, size=50_000)
    first.may_read.set()
    await eventually(lambda: len(second.rows) > 1, "another one goes on")
    assert sending.sender.close(CLOSE_S)
    (_, marker), *others = second.rows
    numbers = [number for number, _ in others]
    assert numbers == list(range(numbers[0], 201))
    assert marker["rows"] == numbers[0] - 1
    assert marker["rows"] < 200
