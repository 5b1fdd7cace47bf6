"""Columns of 64-bit numbers, shortened to one value if all are equal. They are compared and concatenated as bytes.

Reading a value creates a Python object, which takes longer than everything else that is done with it here.
"""

from typing import Any, Final

SIGNED: Final = "q"
UNSIGNED: Final = "Q"
"""Forms, by the letters of `struct`; floats are "d"."""
VALUE_BYTES: Final = 8


def is_uniform(octets: bytes) -> bool:
    """Whether all values are equal; true for zero or one value."""
    return octets[VALUE_BYTES:] == octets[:-VALUE_BYTES]


def values_of(octets: bytes, form: str) -> list[int] | list[float]:
    view: Any = memoryview(octets)
    values: list[int] | list[float] = view.cast(form).tolist()
    return values


def shortened(octets: bytes, form: str, default: float) -> list[int] | list[float]:
    """The values on the wire: a single one if all are equal, none if that is the default."""
    if not is_uniform(octets):
        return values_of(octets, form)
    first = values_of(octets[:VALUE_BYTES], form)
    return [] if first == [default] else first
