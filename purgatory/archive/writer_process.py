"""The archive's writer process, started by the daemon: makes rows and files, so that the daemon never loads pyarrow.

Frames come in on stdin, lines go out on stdout (`writer_protocol`). It ends when its input does: with the daemon,
however that ended. So it outlives a daemon that was killed for as long as it takes to keep what it was given.
"""

import contextlib
import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
from typing import Any, BinaryIO, Final

from purgatory.archive.files import CANNOT_WRITE
from purgatory.archive.history_writer import HistoryWriter, open_history
from purgatory.archive.vocabulary import CannotArchive
from purgatory.archive.writer_protocol import WriterConfig, WriterStatistics, decode_frame, read_frame

LOGGER: Final = logging.getLogger(__name__)

NICENESS: Final = 5
"""Of the thread that makes rows and files: a third of what another busy thread gets of a processor they share. The
thread that reads is not held back, so that what the daemon has sent is not lost with it."""
YOUNG_MAX: Final = 100_000
"""Objects that may come together before garbage is looked for: hardly anything here is in a cycle."""
IDLE_S: Final = 0.2
"""How often it looks whether a roll is due while nothing comes."""


class LineOutput(logging.Handler):
    """Writes lines to the daemon, which also knows where its log goes. Once it is gone, nobody reads them."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream: Final = stream

    def report(self, statistics: WriterStatistics) -> None:
        """What became of the rows."""
        self.write({"statistics": vars(statistics)})

    def emit(self, record: logging.LogRecord) -> None:
        """A line for the daemon's log, or several with a traceback."""
        self.write({"level": record.levelno, "message": self.format(record)})

    def write(self, line: dict[str, Any]) -> None:
        """One line."""
        with contextlib.suppress(OSError):
            self._stream.write(json.dumps(line).encode() + b"\n")
            self._stream.flush()


def serve(frames: BinaryIO, output: LineOutput) -> bool:
    """Keeps what comes until there is no more; whether the end could be written."""
    first = read_frame(frames)
    if first is None:
        return False
    config: WriterConfig = decode_frame(first)
    try:
        history = open_history(config, output.report)
    except CannotArchive as error:
        output.write({"unusable": str(error)})
        return False
    output.report(history.statistics)
    return keep_all(frames, history, low_priority=config.low_priority)


def keep_all(frames: BinaryIO, history: HistoryWriter, *, low_priority: bool) -> bool:
    """Keeps frame after frame until there are no more, and the run's end; whether that could be written."""
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read_all() -> None:
        # Takes frames in as they come: what is still in the daemon's memory is lost when it is killed.
        while (frame := read_frame(frames)) is not None:
            waiting.put(frame)
        history.ending.set()
        waiting.put(None)

    threading.Thread(target=read_all, name="archive-frames", daemon=True).start()
    if low_priority:
        os.nice(NICENESS)  # of this thread, on Linux
    try:
        while True:
            if history.is_due:
                history.maintain()
            try:
                frame = waiting.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            if frame is None:
                history.end()
                return True
            history.keep(*decode_frame(frame))
    except CANNOT_WRITE:
        LOGGER.exception("the end of the archive cannot be written")
        return False


def main() -> int:
    """Exit code 0: all was kept, and the run's end is written."""
    gc.set_threshold(YOUNG_MAX)
    output = LineOutput(sys.stdout.buffer)
    logger = logging.getLogger("purgatory.archive")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(output)
    return 0 if serve(sys.stdin.buffer, output) else 1


if __name__ == "__main__":
    # Only the daemon decides when it ends: these are sent to all processes of a terminal, or of a service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        code = main()
    except Exception:
        LOGGER.exception("the archive's writer process failed")
        code = 1
    os._exit(code)  # the thread that reads may still be waiting, and the interpreter would wait for it
