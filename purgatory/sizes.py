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

# Results.

# With a million operations pending, a message of 5,000 results holds the loop for a millisecond or two. Smaller ones
# were tried and cost throughput.
COLUMN_RESULTS_MAX: Final = 5_000
ROW_RESULTS_MAX: Final = 1_000
"""Maximum of results, and of items, in one message by shape. Encoding a message blocks the event loop, so it must take
at most a few milliseconds."""
CONTROL_MESSAGES_MAX: Final = 64
"""Maximum of unwritten control messages of one stream. At this limit, no requests are read from it."""
FULL_ITEMS_MIN: Final = 10
"""A result with fewer items is never full, however long its names, values and reasons are."""
REFUSAL_MESSAGES_MAX: Final = 1_000
"""Refusals of one receipt with field and message. Further ones have only index, id and code, so that the receipt of a
batch whose operations are all refused stays small."""
PACKED_TOGETHER: Final = 64
"""This many consecutive slices of an outbox are concatenated into one, provided that each of them has at most"""
PACKED_RESULTS_MAX: Final = 4
"""this many results and"""
PACKED_ITEMS_MAX: Final = 64
"""this many items: concatenating 64 results of 2,000 items would block the loop for 20 ms."""
WAITS_CANCELLED_PER_TURN: Final = 256
WAITS_ANSWERED_PER_TURN: Final = 64
"""Operations of unary waits cancelled, and calls answered, in one loop iteration: a few milliseconds of work."""
WEBHOOKS_OPEN_MAX: Final = 64
"""Maximum of open results per session: being sent, waiting for a retry, or delivered before an older one."""
TAIL_ROWS_MAX: Final = 500
"""Operations buffered for one `tail` subscriber; further ones are counted but left out."""
TAIL_EXAMINED_MAX: Final = 3_000
"""Operations per batch that are checked against the grants of a subscriber who may not see everything: all that a slice
of work ends, unless one event ends more. This takes less time than making `TAIL_ROWS_MAX` messages.

Further ones are neither sent nor counted: how many there are must stay unknown to a subscriber who may not see them.
"""
TAIL_ITEMS_MAX: Final = 10
"""Items of an operation that are sent to `tail` subscribers."""
TAIL_ROWS_PER_MESSAGE: Final = 64
"""Ended operations in one message, which clients can then read however long their names and stale reasons are."""
HOT_NAMES_PER_SLICE: Final = 5_000
"""Partitions and keys that a list of hot names examines before other tasks run."""

# Requests.

VALUES_PER_PART: Final = 2_000
"""Maximum of rows, and of items, in one part of a batch of columns: one or two milliseconds, ten if all are refused. An
operation with more items is a part of its own."""
ROWS_COST_MAX: Final = 1_200
"""Maximum cost (rows, items, runs) of one part of a batch of rows. Reading a row takes ten times as long as in columns.
"""
REFUSED_ID_RANGES_MAX: Final = 256
"""Ranges of ids in refused batches that are kept for one session. Our client sends consecutive ids, and such batches
again."""
REFUSED_IDS_PER_SLICE: Final = 10_000
"""Ids of a refused batch that are recorded before other tasks run: 3 ms as rows, 0.5 ms as columns."""
CANCELS_PER_SLICE: Final = 2_000
"""Ids of a request to cancel or extend that are processed before other tasks run; fewer if they end much work."""
EVENT_ANSWERS_PENDING_MAX: Final = 64
"""Maximum number of answers of one stream that wait until they are durable."""
DEMAND_NAMES_PER_MESSAGE: Final = 500
"""Names in one message about demand to a source, and"""
DEMAND_NAMES_PER_SLICE: Final = 1_000
"""names looked at before other tasks run."""

# Slices of the host's own work.

WORK_PER_SLICE: Final = 6_000
"""Events and units of engine work (see `Engine`) per slice; the loop is free between slices.

That is 2,000 plain waits ended by events, or 5,000 items: a few milliseconds with the compiled engine. One operation
(2,000 items by default) and the effects of one event cannot be split.
"""
EXPIRED_PER_SLICE: Final = 2_000
"""Operations that expire per slice; fewer if they have many items (see `WORK_PER_SLICE`)."""
SESSIONS_DROPPED_PER_SLICE: Final = 100
"""Sessions dropped in one slice."""
CALLERS_CHECKED_PER_SLICE: Final = 100
"""Waiting callers whose rights are checked again before other tasks run."""

# Listings.

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 256 * 1024
"""A page that reaches this size is complete: it may be held for a caller that does not read it."""
LISTED_OPERATIONS_AT_ONCE: Final = 16
"""Operations of a page that are requested from the engine at a time; they may have 2,000 items each."""
LISTED_ITEMS_PER_SLICE: Final = 250
"""Items or replicas translated before other tasks run, at about four microseconds each. Honest callers wait for several
turns of the fair queue, so a turn must be short.
"""
LISTED_SLOTS_PER_SLICE: Final = 20_000
"""Slots visited before other tasks run: less than a millisecond with the compiled engine."""
LISTED_NAMES_PER_SLICE: Final = 4_000
"""Names examined or sorted before other tasks run."""
STALE_NAMES_PER_SLICE: Final = 500
"""Names looked up in the table of sources before other tasks run."""
RANKED_SLOTS_PER_SLICE: Final = 10_000
"""Slots ranked before other tasks run: a few milliseconds of work."""

# The journal.

ASYNC_CHANGES_MAX: Final = 100_000
"""In async mode: results and events that may be answered before they are durable; beyond, answers wait as in sync."""
JOURNAL_CHANGE_ROWS_MAX: Final = 64
"""Rows of `changes` after which they are merged into `partitions`."""
JOURNAL_FEW_PARTITIONS: Final = 4
"""Up to this many changed partitions are written to `partitions` directly."""
