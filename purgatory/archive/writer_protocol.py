"""What passes between a daemon and its archive's writer process. Needs no Arrow.

    frame    to the process: the length of a pickle, and the pickle: a `WriterConfig`, then (names, records)
    line     from the process: JSON, either its statistics or a line for the daemon's log

Both ends are of one program, so neither looks at versions.
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
    """What became of the rows so far, and up to which call everything is in its place."""

    rows_done: int = 0
    """Of those that this process was given: rows that are columns by now, or lost."""
    errors: int = 0
    """Times that files could not be written, or rows not be made, by this process."""
    files: int = 0
    bytes: int = 0
    call_number: int = 0
    """The last call of which everything is in its place; `time_ms` and `at_ms` are its stamp's."""
    time_ms: int = 0
    at_ms: int = 0
    rows_kept: dict[str, int] = field(default_factory=no_rows)
    """Rows that lie in files, by table."""
    rows_lost: dict[str, int] = field(default_factory=no_rows)
    """Rows that this process could not make, by table."""
    file_numbers: dict[str, int] = field(default_factory=no_rows)
    """The last that was given, by table."""


class WriterConfig(NamedTuple):
    """What a writer process starts with: the place, the run, and how its files are rolled."""

    place: str
    run_id: str
    details: RunDetails
    statistics: WriterStatistics
    """To begin with: the instant at which the run's engine was made; or, where this process continues the run of one
    that died, the last that it reported."""
    roll_s: float
    roll_bytes: int
    low_priority: bool
    """Whether rows and files are made at a lower priority than the daemon's own work."""
    is_continued: bool = False
    """Whether it continues the run of a writer process that died."""


def encode_frame(content: Any) -> bytes:  # noqa: ANN401 - plain data
    """One frame."""
    body = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None at the end, also where the daemon died in the middle of a frame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    [length] = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def decode_frame(body: bytes) -> Any:  # noqa: ANN401 - what was encoded
    """What a frame holds. Only for frames of our own other half, through a pipe that nobody else has."""
    return pickle.loads(body)  # noqa: S301
