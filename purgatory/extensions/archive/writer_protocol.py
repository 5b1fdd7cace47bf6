"""Protocol between the daemon and its archive's writer process. Needs no Arrow.

    frame    to the process: the length of a pickle, and the pickle: a `WriterConfig`, then (names, records)
    line     from the process: JSON, either its statistics or a line for the daemon's log

Both ends always have the same version, so versions are not checked.
"""

import pickle
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NamedTuple

from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.vocabulary import TABLES

LENGTH: Final = struct.Struct("<Q")


def no_rows() -> dict[str, int]:
    return dict.fromkeys(TABLES, 0)


@dataclass
class WriterStatistics:
    """Progress of the writer process: counts of rows and files, and the last call whose rows are all in place."""

    rows_done: int = 0
    """Rows received by this process that it has converted to columns or lost."""
    errors: int = 0
    """Number of times that this process failed to write files or to build rows."""
    files: int = 0
    bytes: int = 0
    call_number: int = 0
    """The last call whose rows are all in place; `time_ms` and `at_ms` belong to its stamp."""
    time_ms: int = 0
    at_ms: int = 0
    rows_kept: dict[str, int] = field(default_factory=no_rows)
    """Rows in files that are in place, by table."""
    rows_lost: dict[str, int] = field(default_factory=no_rows)
    """Rows that this process could not build, by table."""
    file_numbers: dict[str, int] = field(default_factory=no_rows)
    """The last file number assigned, by table."""


class WriterConfig(NamedTuple):
    """Initial settings of a writer process: the archive's location, the run, and when its files roll."""

    place: str
    run_id: str
    details: RunDetails
    statistics: WriterStatistics
    """Initial statistics. For a new run they hold the time at which its engine was created; for a process that
    continues the run of one that died, the last statistics which that one reported.
    """
    roll_s: float
    low_priority: bool
    """Whether building rows and files has a lower priority than the daemon's own work."""
    is_continued: bool = False
    """Whether the process continues the run of a writer process that died."""


def encode_frame(content: Any) -> bytes:  # noqa: ANN401 - plain data
    body = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None at the end of the input, even if that is in the middle of a frame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    [length] = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def decode_frame(body: bytes) -> Any:  # noqa: ANN401 - what was encoded
    """Decode the body of a frame. Safe only for frames from the daemon itself, over a private pipe."""
    return pickle.loads(body)  # noqa: S301
