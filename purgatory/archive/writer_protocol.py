"""The protocol between a daemon and its archive writer. Needs no Arrow.

    frame    to the process: the length of a pickle, and the pickle: a `WriterConfig`, then (names, records)
    line     from the process: JSON, either its statistics or a line for the daemon's log

Both ends belong to the same program, so there are no versions.
"""

import pickle
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NamedTuple

from purgatory.archive.run_details import RunDetails
from purgatory.archive.vocabulary import TABLES

LENGTH: Final = struct.Struct("<Q")


def no_rows() -> dict[str, int]:
    """0 for each table."""
    return dict.fromkeys(TABLES, 0)


@dataclass
class WriterStatistics:
    """Progress: counts of rows, and the last call up to which everything is stored."""

    rows_done: int = 0
    """Rows received by this process that are converted to columns, or lost."""
    errors: int = 0
    """Failures of this process to write files or to convert rows."""
    files: int = 0
    bytes: int = 0
    call_number: int = 0
    """The last call whose rows are all in complete files; `time_ms` and `at_ms` are those of its stamp."""
    time_ms: int = 0
    at_ms: int = 0
    rows_kept: dict[str, int] = field(default_factory=no_rows)
    """Rows in complete files, by table."""
    rows_lost: dict[str, int] = field(default_factory=no_rows)
    """Rows that this process could not convert, by table."""
    file_numbers: dict[str, int] = field(default_factory=no_rows)
    """The last number in use, by table."""


class WriterConfig(NamedTuple):
    """Configuration of a writer process: place, run, and when files roll."""

    place: str
    run_id: str
    details: RunDetails
    statistics: WriterStatistics
    """Initial values: the instant at which the run's engine was created, or, when this process continues the run of one
    that died, that process's last report."""
    roll_s: float
    roll_bytes: int
    low_priority: bool
    """Whether rows and files are made at a lower priority than the daemon's."""
    is_continued: bool = False
    """Whether it continues the run of a writer process that died."""


def encode_frame(content: Any) -> bytes:  # noqa: ANN401 - plain data
    """Encodes one frame."""
    body = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None at the end, also if the daemon died in the middle of a frame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    [length] = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def decode_frame(body: bytes) -> Any:  # noqa: ANN401 - what was encoded
    """The content of a frame. It is a pickle, so decode only frames from the daemon's own pipe."""
    return pickle.loads(body)  # noqa: S301
