"""The codec of columns: compact serialization of integers, short where they are regular.

A column is a form, a count, and then, little-endian:

| form        | content                                           | used for                                 |
|-------------|---------------------------------------------------|------------------------------------------|
| 0           | first value, step                                 | equal values, ids that rise by one, none |
| 1, 2, 4     | lowest value, then differences of that many bytes | values that are close together           |
| 8           | each value                                        | anything else                            |

A text is its length in bytes and its UTF-8. The bytes do not describe the meaning of a column: columns are read in the
order in which they were written. Journals on disk contain these bytes, so the forms must not change.
"""

from typing import Final

from librt.strings import (
    BytesWriter,
    read_f64_le,
    read_i16_le,
    read_i32_le,
    read_i64_le,
    write_f64_le,
    write_i16_le,
    write_i32_le,
    write_i64_le,
)
from librt.vecs import append, vec
from mypy_extensions import i16, i32, i64, u8

STEADY: Final = 0
WHOLE: Final = 8
SPREAD_MAX: Final[i64] = 2**62
"""Values further from zero than this are written in full, because their differences might not fit."""

ABSENT: Final = -1.0
"""The usual value in a column of floats; a column with no other value is stored as a count."""


class ColumnWriter:
    """Writes columns and texts one after the other."""

    def __init__(self) -> None:
        self._bytes: Final = BytesWriter()

    def add(self, values: vec[i64]) -> None:
        """Write a column of integers."""
        out = self._bytes
        count: i64 = i64(len(values))
        if count == 0 or is_steady(values):
            self._head(STEADY, count)
            write_i64_le(out, values[0] if count else 0)
            # The step fits: with the first and the last value far from the limits of 64 bits, those in between are too.
            write_i64_le(out, values[1] - values[0] if count > 1 else 0)
            return
        lowest = values[0]
        highest = lowest
        for value in values:
            if value < lowest:
                lowest = value
            elif value > highest:
                highest = value
        width = width_of(lowest, highest)
        self._head(width, count)
        if width == WHOLE:
            for value in values:
                write_i64_le(out, value)
            return
        write_i64_le(out, lowest)
        if width == 1:
            for value in values:
                out.append(u8(value - lowest))
        elif width == 2:
            for value in values:
                # There are only signed writes, so unsigned differences are shifted into the signed range; `column`
                # shifts back.
                write_i16_le(out, i16(value - lowest - 0x8000))
        else:
            for value in values:
                write_i32_le(out, i32(value - lowest - 0x8000_0000))

    def add_list(self, values: list[int]) -> None:
        """Write a column of integers from a list."""
        self.add(vec[i64](values))

    def add_floats(self, values: vec[float]) -> None:
        """Write a column of floats, most of which are ABSENT."""
        out = self._bytes
        steady = True
        for value in values:
            if value != ABSENT:
                steady = False
        self._head(STEADY if steady else WHOLE, i64(len(values)))
        if not steady:
            for value in values:
                write_f64_le(out, value)

    def add_text(self, text: str) -> None:
        self.add_octets(text.encode("utf-8"))

    def add_octets(self, octets: bytes) -> None:
        """Write bytes and their length."""
        write_i32_le(self._bytes, i32(len(octets)))
        self._bytes.write(octets)

    def _head(self, form: i64, count: i64) -> None:
        self._bytes.append(u8(form))
        write_i32_le(self._bytes, i32(count))

    def to_bytes(self) -> bytes:
        """All bytes written so far."""
        return self._bytes.getvalue()


class ColumnReader:
    """Reads what a `ColumnWriter` wrote, in the same order. Raises IndexError at the end of the data."""

    def __init__(self, octets: bytes) -> None:
        self._bytes: Final = octets
        self._place: i64 = 0

    @property
    def is_done(self) -> bool:
        """Whether everything has been read."""
        return self._place >= i64(len(self._bytes))

    def column(self) -> vec[i64]:
        """Read a column of integers."""
        octets = self._bytes
        form: i64 = i64(octets[self._place])
        count: i64 = i64(read_i32_le(octets, self._place + 1))
        # One byte for the form and four for the count.
        place: i64 = self._place + 5
        # The count is not checked against the bytes that are left: rows of the journal are read only after their
        # checksum.
        values = vec[i64](capacity=count)
        done: i64 = 0
        if form == STEADY:
            first = read_i64_le(octets, place)
            step = read_i64_le(octets, place + 8)
            while done < count:
                values = append(values, first + done * step)
                done += 1
            self._place = place + 16
            return values
        lowest: i64 = 0
        if form != WHOLE:
            lowest = read_i64_le(octets, place)
            place += 8
        while done < count:
            if form == 1:
                values = append(values, lowest + i64(octets[place]))
            elif form == 2:
                values = append(values, lowest + 0x8000 + i64(read_i16_le(octets, place)))
            elif form == 4:
                values = append(values, lowest + 0x8000_0000 + i64(read_i32_le(octets, place)))
            else:
                values = append(values, read_i64_le(octets, place))
            place += form
            done += 1
        self._place = place
        return values

    def floats(self) -> vec[float]:
        """Read a column of floats."""
        form: i64 = i64(self._bytes[self._place])
        count: i64 = i64(read_i32_le(self._bytes, self._place + 1))
        self._place += 5
        values = vec[float](capacity=count)
        done: i64 = 0
        while done < count:
            if form == STEADY:
                values = append(values, ABSENT)
            else:
                values = append(values, read_f64_le(self._bytes, self._place))
                self._place += 8
            done += 1
        return values

    def text(self) -> str:
        """Read a text."""
        return self.octets().decode("utf-8")

    def octets(self) -> bytes:
        """Read bytes."""
        length: i64 = i64(read_i32_le(self._bytes, self._place))
        start = self._place + 4
        self._place = start + length
        return self._bytes[start : start + length]


def is_steady(values: vec[i64]) -> bool:
    """Whether the values have a constant step."""
    count: i64 = i64(len(values))
    if count < 2:
        return count == 0 or -SPREAD_MAX < values[0] < SPREAD_MAX
    if not (-SPREAD_MAX < values[0] < SPREAD_MAX and -SPREAD_MAX < values[count - 1] < SPREAD_MAX):
        return False
    step = values[1] - values[0]
    expected = values[0]
    for value in values:
        if value != expected:
            return False
        expected += step
    return True


def width_of(lowest: i64, highest: i64) -> i64:
    """Bytes needed for the difference of each value from the lowest."""
    if lowest <= -SPREAD_MAX or highest >= SPREAD_MAX:
        return WHOLE
    spread = highest - lowest
    if spread < 0x100:
        return 1
    if spread < 0x1_0000:
        return 2
    return 4 if spread < 0x1_0000_0000 else WHOLE
