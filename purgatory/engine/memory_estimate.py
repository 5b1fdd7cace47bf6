"""Memory of the parts of an engine, in bytes: measured once, and checked by a test.

Tables are counted by the rows that they have grown to, including free ones, because they do not shrink.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven

OPERATION_BYTES: Final[i64] = 72
"""A row, its timer, its entry in the owner's index, and the spare capacity of growing arrays."""
ITEM_BYTES: Final[i64] = 72
"""A row and its watch."""
FETCH_BYTES: Final[i64] = 300
"""Bytes of a fetch in addition to its row."""
FETCH_ITEM_BYTES: Final[i64] = 160
STALE_TIMEOUT_BYTES: Final[i64] = 120
"""Additional bytes of an operation with a stale timeout."""
HEARTBEAT_BYTES: Final[i64] = 200
"""Additional bytes of an operation with a heartbeat timeout."""
OWNER_BYTES: Final[i64] = 200
PARTITION_BYTES: Final[i64] = 1_400
"""Between a compiled partition (1,000) and an uncompiled one, which has a dictionary for its attributes (2,900)."""
REPLICA_BYTES: Final[i64] = 180
EPOCH_BYTES: Final[i64] = 80
POSITION_BYTES: Final[i64] = 40
KEY_BYTES: Final[i64] = 600
IDLE_ACCOUNT_BYTES: Final[i64] = 2_000
"""An account that has idle keys, and their order."""
VALUE_BYTES: Final[i64] = 40
"""The value of a key, without its content."""
WATCH_LIST_BYTES: Final[i64] = 400
NAME_BYTES: Final[i64] = 150
"""A name as a tuple, without the characters of its text."""


def name_bytes(name: AsGiven) -> int:
    """Bytes of a partition's name, or of a key's name as (key, -1)."""
    text: str = name[0]
    return int(NAME_BYTES) + len(text) * (1 if text.isascii() else 4)
