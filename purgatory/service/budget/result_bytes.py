"""What results take in memory while they wait to be acknowledged, in bytes: measured once, and kept true by a test."""

from typing import Final

RESULT_BYTES: Final = 64
"""A result in its columns, besides its items."""

RESULT_ITEM_BYTES: Final = 64

FETCHED_BYTES: Final = 160
"""What an item of a fetch has besides."""

STALE_MARK_BYTES: Final = 200
"""What an item has besides whose mark is stale; the reasons are shared."""

SLICE_BYTES: Final = 900
"""Results that came together, besides themselves."""

REFUSAL_BYTES: Final = 500
"""A refused registration, besides its text."""
