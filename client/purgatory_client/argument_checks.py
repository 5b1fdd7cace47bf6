"""Checks of arguments from callers: collections, types, keywords, and numbers and columns that must fit the wire.

A text is a collection of its characters, and a function with `**keywords` takes any name: both are usually mistakes,
and would ask the daemon for something else.

A number that does not fit must be refused before it joins a batch: a batch that cannot be encoded would fail together
with all its other waits. On the wire a column has a value for each entry, one value for all, or none for the default.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from operator import index
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from purgatory_client.errors import InvalidRequest

T = TypeVar("T")
M = TypeVar("M", bound=Message)

DIGITS_MAX: Final = 40
"""The number of digits that are read. A longer number is out of every range, and `int` raises above 4,300 digits."""
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of Unix time."""
TIMEOUT_S_MAX: Final = INT32_MAX / 1_000
"""The longest timeout that a daemon's `limits.timeout_ms_max` can be set to allow, in seconds."""


def several(values: Iterable[T], argument: str) -> list[T]:
    """The values of a collection, as a list. Raises InvalidRequest for a single value, also for a text."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InvalidRequest(argument, f"{values!r} is a single value; give a list, such as [{values!r}]")
    return list(values)


def checked_type(value: object, kind: type[T] | tuple[type[T], ...], argument: str, remedy: str) -> T:
    """Return `value` if it has this type. Raises InvalidRequest, which states the `remedy`."""
    if not isinstance(value, kind):
        raise InvalidRequest(argument, f"{type(value).__name__} given; {remedy}")
    return value


def truth(value: object, argument: str) -> bool:
    """Return a truth value. Raises InvalidRequest for anything else, such as "no", which Python takes for true."""
    if value not in (True, False):
        raise InvalidRequest(argument, f"{value!r} given; give True or False")
    return bool(value)


def checked(kind: type[M], /, **fields: Any) -> M:  # noqa: ANN401 - fields of several types
    """Make a message of the wire. Raises InvalidRequest, with the field's name, for a value of another type."""
    made = kind()
    for field, value in fields.items():
        try:
            made.MergeFrom(kind(**{field: value}))
        except (TypeError, ValueError):
            raise InvalidRequest(field, f"{value!r} is too large, or of another type than this argument") from None
    return made


def check_keywords(function: str, given: Iterable[str], known: frozenset[str]) -> None:
    """Raises TypeError, as Python does for functions that list their keywords, with the closest known one."""
    for name in given:
        if name not in known:
            closest = get_close_matches(name, known, 1, 0.0)[0]
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}. Did you mean {closest!r}?")


def whole_number(text: str) -> int | None:
    """The number that a text of ASCII digits stands for, cut to its first DIGITS_MAX; None for any other text.

    `int` would also take "1_0", and digits of other scripts.
    """
    return int(text.lstrip("0")[:DIGITS_MAX] or "0") if text.isascii() and text.isdigit() else None


def shown(number: float) -> str:
    """A number for an error message; Python formats no integer of more than 4,300 digits."""
    if isinstance(number, int) and number.bit_length() > 4 * DIGITS_MAX:
        return f"an integer of {number.bit_length()} bits"
    return str(number)


def int32(value: int, field: str) -> int:
    """Return `value` if it is an integer of 32 signed bits. Raises InvalidRequest."""
    return _signed(value, field, 32)


def int64(value: int, field: str) -> int:
    """Return `value` if it is an integer of 64 signed bits. Raises InvalidRequest."""
    return _signed(value, field, 64)


def integer(value: int, field: str) -> int:
    """Return `value`. Raises InvalidRequest for a truth value and for anything that is not an integer, such as "42"."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise InvalidRequest(field, f"{value!r} is not an integer")


def _signed(value: int, field: str, bits: int) -> int:
    number = integer(value, field)
    if number.bit_length() >= bits and number != -(1 << bits - 1):
        raise InvalidRequest(field, f"{shown(number)} does not fit in {bits} bits")
    return number


def int_column(values: Sequence[int] | None, count: int, field: str, highest: int, lowest: int) -> list[int]:
    """A column of integers. Raises InvalidRequest unless it has 0, 1 or `count` values, all in [lowest, highest]."""
    if values is None:
        return []
    column = several(values, field)
    if not set(map(type, column)) <= {int}:  # looking at each value would take as long as the rest of the batch
        column = [integer(value, f"{field}[{place}]") for place, value in enumerate(column)]
    check_length(column, count, field)
    if column and (min(column) < lowest or max(column) > highest):
        place = next(i for i, value in enumerate(column) if not lowest <= value <= highest)
        raise InvalidRequest(f"{field}[{place}]", f"{shown(column[place])} must be from {lowest} to {highest}")
    return column


def check_length(column: Sequence[object], count: int, field: str) -> None:
    """Raises InvalidRequest unless the column has a value for each of `count` entries, one for all, or none."""
    if len(column) not in (0, 1, count):
        raise InvalidRequest(
            field, f"{len(column)} values for {count} entries; give one for each, one for all, or none"
        )


def take(column: Sequence[T], positions: Sequence[int]) -> Sequence[T]:
    """The values at `positions`; a column with at most one value is returned unchanged."""
    if len(column) <= 1:
        return column
    if isinstance(positions, range):
        return column[positions.start : positions.stop]
    return [column[position] for position in positions]


def squeeze(column: list[T]) -> list[T]:
    """Shorten a column of equal values to one value."""
    if len(column) > 1 and column.count(column[0]) == len(column):
        return column[:1]
    return column


def milliseconds(seconds: float | None, field: str = "timeout_ms") -> int | None:
    """A timeout in the wire's milliseconds, rounded up so that it is never early. None stays None: the daemon's
    default.

    Raises InvalidRequest for a timeout that no daemon accepts: negative, not a number, or over 2**31 - 1 ms (24.8
    days).
    """
    if seconds is None:
        return None
    try:
        is_allowed = not isinstance(seconds, bool) and 0 <= seconds <= TIMEOUT_S_MAX
    except TypeError:
        raise InvalidRequest(field, f"{seconds!r} is not a number of seconds") from None
    if not is_allowed:
        raise InvalidRequest(field, f"a timeout of {shown(seconds)} s; must be from 0 to {TIMEOUT_S_MAX} s")
    return math.ceil(seconds * 1_000)


def milliseconds_of(as_of: datetime | None) -> int | None:
    """The first whole millisecond of Unix time that is not before a time. Raises InvalidRequest without a time zone."""
    if as_of is None:
        return None
    if checked_type(as_of, datetime, "as_of", "give a datetime").tzinfo is None:
        raise InvalidRequest("as_of", f"{as_of} has no time zone; give one, such as timezone.utc")
    return -((EPOCH - as_of) // timedelta(milliseconds=1))
