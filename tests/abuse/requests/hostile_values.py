"""Hostile values for one field, chosen by its type: extremes, zeros, and text that often breaks programs."""

import random
from typing import Final

from google.protobuf.descriptor import FieldDescriptor

INTEGER_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
EDGES: Final = (0, 1, -1, 2, -2, 249, 250, 2**15, 2**16, 2**31 - 1, 2**31, 2**59, 2**61 - 1, 2**61, 2**62, 2**63 - 1)
TEXTS: Final = (
    "",
    " ",
    "\0",
    "a\0b",
    "-",
    "\n\r\t",
    "../../../etc/passwd",
    "C:\\con",
    "%s%n%x{0}{}",
    "\u202eorders\u202c",
    "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "e\u0301\u0323" * 40,
    "\ufeff\ufffe\uffff",
    "\U0010ffff" * 249,
    "'; DROP TABLE waits; --",
    "<script>alert(1)</script>",
    "x" * 128,
    "x" * 129,
    "x" * 249,
    "x" * 250,
    "\u0130" * 249,
)
LONG_LENGTHS: Final = (1_000, 5_000, 9_000, 17_000, 70_000)


def hostile_integer(rng: random.Random, field: FieldDescriptor) -> int:
    """An integer near a limit of its type or of the engine's arithmetic; sometimes any integer."""
    low, high = INTEGER_RANGES[field.cpp_type]
    drawn = rng.random()
    if drawn < 0.2:
        return rng.choice((low, high, low + 1, high - 1))
    if drawn < 0.9:
        return min(max(rng.choice(EDGES), low), high)
    return rng.randint(low, high)


def hostile_text(rng: random.Random) -> str:
    """Hostile text in valid UTF-8."""
    drawn = rng.random()
    if drawn < 0.9:
        return rng.choice(TEXTS)
    if drawn < 0.95:
        return rng.choice("xé\u20ac\U0001f480\0") * rng.choice(LONG_LENGTHS)
    return "".join(chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(20))


def hostile_value(rng: random.Random, field: FieldDescriptor) -> object:
    """A value that the field's type allows and that no client would send."""
    if field.cpp_type in INTEGER_RANGES:
        return hostile_integer(rng, field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = hostile_text(rng)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    return rng.choice((0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324))


def broken_bytes(rng: random.Random, data: bytes) -> bytes:
    """A message's bytes with some of them removed, changed, duplicated or inserted."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        drawn = rng.random()
        place = rng.randrange(len(broken) + 1)
        if drawn < 0.35 and broken:
            broken[place % len(broken)] = rng.randrange(256)
        elif drawn < 0.5:
            del broken[place:]
        elif drawn < 0.65:
            broken[place:place] = rng.randbytes(rng.choice((1, 2, 9, 40)))
        elif drawn < 0.75:
            broken[place:place] = b"\xff" * rng.choice((1, 5, 10, 11))
        elif drawn < 0.85:
            del broken[place : place + rng.choice((1, 2, 8))]
        elif drawn < 0.95 and len(broken) < 20_000:
            broken += broken[place:]
        else:
            broken[:] = rng.randbytes(rng.choice((0, 1, 3, 50, 500)))
    return bytes(broken)
