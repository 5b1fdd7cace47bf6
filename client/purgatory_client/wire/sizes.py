"""Internal sizes of the client: where messages are cut, and how much is kept. Not limits that a caller sets."""

from typing import Final

# Messages to the daemon.

OPERATIONS_PER_CHUNK_MAX: Final = 10_000
ITEMS_PER_CHUNK_MAX: Final = 50_000
BYTES_PER_CHUNK_MAX: Final = 2_000_000
"""Maximum of operations, items and estimated bytes in one batch message."""
SENT_BYTES_MAX: Final = 4 << 20
"""Largest message for a daemon that does not report its limit: gRPC's default."""
WINDOW: Final = 8
"""Maximum number of batches without a receipt."""
CANCELS_PER_MESSAGE_MAX: Final = 10_000
EVENTS_PER_MESSAGE_MAX: Final = 10_000
DECISIONS_PER_MESSAGE_MAX: Final = 500
"""Decided signals passed on to other shards in one message: with values, they have up to 2 MiB."""
EVENTS_QUEUED_MAX: Final = 1_000_000
"""Events that wait to be sent; more are refused with LimitExceeded."""

# Messages from the daemon.

RECEIVED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest message accepted."""
UNACKNOWLEDGED_MAX: Final = 5_000
"""Results after which the acknowledgement is sent at once. Limited to half of the daemon's `unacknowledged_max`."""
SEGMENTS_MAX: Final = 32
"""Maximum number of messages that a batch's results refer to before their values are copied. Without the limit, a
batch whose results arrive a few at a time would keep many messages in memory.
"""
