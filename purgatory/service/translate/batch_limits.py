"""Limits of one message, above which it is refused as a whole."""

from typing import Final

OPERATIONS_MAX: Final = 100_000
EVENTS_MAX: Final = 100_000
ITEMS_MAX: Final = 500_000
"""Values in one column, and names in its dictionary: one for each partition or key of a batch."""
