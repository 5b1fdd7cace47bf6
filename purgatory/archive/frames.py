"""How calls and what became of them cross between a daemon and the process that keeps its archive.

One way go frames: the length of a pickle, how many buffers it refers to, the length of each, and then all of these. The
other way go lines of JSON, each what has become of the rows, or a line for the log. Both ends are of one program, so
neither looks at versions.
"""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any, BinaryIO, Final, NamedTuple

__all__ = ["Frame", "Line", "framed", "read_frame", "read_line", "write_line"]

NUMBER: Final = struct.Struct("<I")

Line = dict[str, Any]


class Frame(NamedTuple):
    """What was sent, still packed."""

    head: bytes
    buffers: list[bytes]

    def unpacked(self) -> Any:  # noqa: ANN401
        """What was written."""
        # Of our own other half, through a pipe that nobody else has.
        return pickle.loads(self.head, buffers=self.buffers)  # noqa: S301


def framed(content: Any) -> list[memoryview]:  # noqa: ANN401 - plain data
    """A frame, in parts that are to be written one after the other; what stands in a PickleBuffer is not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(content, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = b"".join(map(NUMBER.pack, (len(head), len(views), *map(len, views))))
    return [memoryview(lengths + head), *views]


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame; None: there is no more, or not all of it."""
    try:
        length, count = (_number(stream) for _ in range(2))
        lengths = [_number(stream) for _ in range(count)]
        return Frame(_bytes(stream, length), [_bytes(stream, length) for length in lengths])
    except EOFError:
        return None


def _number(stream: BinaryIO) -> int:
    [number] = NUMBER.unpack(_bytes(stream, NUMBER.size))
    return int(number)


def _bytes(stream: BinaryIO, length: int) -> bytes:
    read = stream.read(length)
    if len(read) < length:
        raise EOFError
    return read


def write_line(stream: BinaryIO, line: Line) -> None:
    """Writes one line."""
    stream.write(json.dumps(line).encode() + b"\n")
    stream.flush()


def read_line(stream: BinaryIO) -> Line | None:
    """The next line; None: there is no more."""
    text = stream.readline()
    return json.loads(text) if text.endswith(b"\n") else None
