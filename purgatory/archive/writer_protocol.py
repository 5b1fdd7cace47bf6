"""What passes between a daemon and its archive's writer process. Needs no Arrow.

    frame    to the process: the length of a pickle, and the pickle: a `WriterConfig`, then (names, records)
    line     from the process: JSON, either its statistics or a line for the daemon's log

Both ends are of one program, so neither looks at versions.
"""

import json
import pickle
import struct
from typing import Any, BinaryIO, Final, NamedTuple

LENGTH: Final = struct.Struct("<Q")


class WriterStatistics(NamedTuple):
    """What became of the rows so far, and up to which call everything is in its place."""

    rows_done: int
    """Of those that this process was given: rows that are columns by now, or lost."""
    rows_kept: dict[str, int]
    """Rows that lie in files, by table."""
    rows_lost: dict[str, int]
    """Rows that this process could not make, by table."""
    files: int
    bytes: int
    errors: int
    """Times that files could not be written, or rows not be made, by this process."""
    call_number: int
    """The last call of which everything is in its place; `time_ms` and `at_ms` are its stamp's."""
    time_ms: int
    at_ms: int
    file_numbers: dict[str, int]
    """The last that was given, by table."""


class WriterConfig(NamedTuple):
    """What a writer process starts with: the place, the run, and how its files are rolled."""

    place: str
    run_id: str
    host: str
    pid: int
    """Of the daemon."""
    started_ms: int
    """The engine's clock."""
    started_at_ms: int
    """The same instant as wall-clock time."""
    details: str
    """Of the STARTED marker."""
    roll_s: float
    roll_bytes: int
    rows_at_once: int
    """Rows of a table that come together before Arrow arrays are made of them."""
    unreported_rows_max: int
    """Rows that may be made before the daemon is told: it counts them as waiting until then."""
    low_priority: bool
    """Whether rows and files are made at a lower priority than the daemon's own work."""
    continued: WriterStatistics | None = None
    """The last statistics of the writer process before, which died: this one goes on with its run."""


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


def encode_line(line: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(line).encode() + b"\n"


def decode_line(text: bytes) -> dict[str, Any] | None:
    """What a line says; None at the end, also where the writer process died in the middle of a line."""
    return json.loads(text) if text.endswith(b"\n") else None
