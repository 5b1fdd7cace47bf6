"""What the parts of an engine take in memory, in bytes: measured once, and kept true by a test.

Tables are counted by the rows they have grown to, free ones included, as they do not shrink.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven

OPERATION_BYTES: Final[i64] = 72
"""A row with its timer and its place in the owner's index, and the room that growing arrays keep."""
ITEM_BYTES: Final[i64] = 72
"""A row and its watch."""
FETCH_BYTES: Final[i64] = 300
"""What a fetch takes besides its row."""
FETCH_ITEM_BYTES: Final[i64] = 160
STALE_TIMEOUT_BYTES: Final[i64] = 120
"""What an operation takes besides that has a stale timeout."""
OWNER_BYTES: Final[i64] = 200
PARTITION_BYTES: Final[i64] = 1_250
REPLICA_BYTES: Final[i64] = 180
EPOCH_BYTES: Final[i64] = 80
POSITION_BYTES: Final[i64] = 40
KEY_BYTES: Final[i64] = 600
NAME_BYTES: Final[i64] = 150
"""A name as a tuple, besides the characters of its text."""


def text_bytes(text: str) -> int:
    """What a name of that text takes."""
    return int(NAME_BYTES) + len(text) * (1 if text.isascii() else 4)


def name_bytes(name: AsGiven) -> int:
    """What the name of a partition, or that of a key as (key, -1), takes."""
    return text_bytes(name[0])
