"""The engine's packed columns as a whole: arrays of 64-bit numbers, compared and joined as the bytes they are.

To look at each value of a column makes a Python object of it, which costs more than all else that happens to it here.
"""

from __future__ import annotations

from typing import Final, Literal

Form = Literal["q", "Q", "d"]
"""What the numbers are: signed, unsigned, or floats; as `struct` says it."""

SIGNED: Final = "q"
UNSIGNED: Final = "Q"
FLOAT: Final = "d"
VALUE_BYTES: Final = 8


def is_uniform(octets: bytes) -> bool:
    """True: all values are the same; or there are none, or one."""
    return octets[VALUE_BYTES:] == octets[:-VALUE_BYTES]


def values_of(octets: bytes, form: Form) -> list[int] | list[float]:
    """The numbers themselves."""
    return memoryview(octets).cast(form).tolist()


def shortened(octets: bytes, form: Form, default: float) -> list[int] | list[float]:
    """The values, as a column of the wire has them: one when all are the same, none when they are the default."""
    if not is_uniform(octets):
        return values_of(octets, form)
    first = values_of(octets[:VALUE_BYTES], form)
    return [] if first == [default] else first
