"""Memory of results that wait to be acknowledged, in bytes. Measured once; a test checks the values."""

from typing import Final

RESULT_BYTES: Final = 64
"""A result in its columns, without its items."""

RESULT_ITEM_BYTES: Final = 64

FETCHED_BYTES: Final = 160
"""Added for each item of a fetch."""

STALE_MARK_BYTES: Final = 200
"""Added for each item whose mark is stale; the reasons are shared."""

SIGNAL_VALUE_BYTES: Final = 100
"""Added for each item with the value of a key, and the length of each different value: they are shared."""

SLICE_BYTES: Final = 900
"""Overhead of results that were added together."""

REFUSAL_BYTES: Final = 500
"""A refused registration, without its text."""
