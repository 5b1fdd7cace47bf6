"""Columns of 64-bit numbers, shortened to one value where all are the same. They are compared and joined as bytes.

Reading a value makes a Python object of it, which costs more than everything else that happens to it here.
"""

from typing import Final, Literal

Form = Literal["q", "Q", "d"]
"""Signed, unsigned or float, by the letters of `struct`."""

SIGNED: Final = "q"
UNSIGNED: Final = "Q"
FLOAT: Final = "d"
VALUE_BYTES: Final = 8


def is_uniform(octets: bytes) -> bool:
    """Whether all values are the same (also when there are none, or one)."""
    return octets[VALUE_BYTES:] == octets[:-VALUE_BYTES]


def values_of(octets: bytes, form: Form) -> list[int] | list[float]:
    return memoryview(octets).cast(form).tolist()


def shortened(octets: bytes, form: Form, default: float) -> list[int] | list[float]:
    """The values as the wire has them: one when all are the same, none when that is the default."""
    if not is_uniform(octets):
        return values_of(octets, form)
    first = values_of(octets[:VALUE_BYTES], form)
    return [] if first == [default] else first
