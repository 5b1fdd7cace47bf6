"""Internal sizes of the daemon: where messages, parts, pages and slices are cut. Not limits that a caller is told."""

from typing import Final

MESSAGE_BYTES_MAX: Final = 3_500_000
"""A message of results has at most this size, because gRPC clients accept 4 MiB by default. A single result always
fits: `limits.items_per_operation_max` is checked against it at the start, and values and reasons that would make a
result larger are left out.
"""

ITEM_BYTES_MAX: Final = 200
"""Maximum encoded size of an item of a result without its name, value and stale reason; of a result without items, too.
"""
CHARACTER_BYTES_MAX: Final = 4
"""UTF-8."""
