"""Equivalent mutants, which behave like the engine, so that no test can kill them: (function, change, reason).

The function is a glob for mutmut's names; the change is a regular expression for the changed lines of its diff.
"""

from typing import Final

EQUIVALENT: Final[tuple[tuple[str, str, str], ...]] = (
    ("*.partition.*raise_high_watermark", r"^\+.*offset <= self\.log_start_offset", "an equal offset becomes itself"),
    ("*.partition.*recompute_high_watermark", r"^\+.*<= candidate", "an equal candidate becomes itself"),
    ("*FetchItem*__init__", r"^\+.*self\.(start_segment|start_reach)\b", "anchor() assigns it before it is read"),
    ("*PositionIndex*_floor", r"^\+.*offsets\[high - 1\] < offset", "a short cut: the search finds the same"),
    (
        "*Replica*forget_progress",
        r"^\+.*leader_end_at_last_fetch = \+1",
        "without a time of that fetch it counts for nothing",
    ),
    ("*OperationTable*take", r"^\+.*self\.first_item\[slot\]", "linking its items sets it before it is read"),
    ("*.partition.*last_stable_offset", r"^\+.*unstable > self\.high_watermark", "an equal one is the high watermark"),
    ("*.partition.*note_epoch_start", r"^\+.*log_end_offset > 0 else 0", "zero becomes itself"),
    ("*.fetch_rules.*_readable_bytes", r"^\+.*else -2", "any negative reach is unknown"),
    ("*.fetch_rules.*_threshold", r"^\+.*share <= room", "an equal share is the room"),
    ("*.completions.*ResultColumn*__init__", r".", "all are made at import, before mutmut sets the mutant"),
    ("*Owner*note", r"^\+.*self\.pending \+ 65", "when to compact changes no answer"),
    ("*Replica*__init__", r"^\+.*leader_end_at_last_fetch: i64 = -2", "any negative number is of no fetch"),
    ("*EngineInspection*count_remaining", r"^\+.*left (<= 0|< 1)", "zero becomes itself"),
    ("*ColumnWriter*add", r"^\+.*value <= lowest", "an equal value becomes itself"),
    ("*Wakeups*__init__", r"^\+.*Kind\(1,", "no operation has the kind at 0"),
    ("*completions_of", r"^\+.*Completions\(owner\.owner_id, owner\.", "room to begin with changes no answer"),
    ("*WatchList*", r"^\+.*>= .*SLACK", "when to compact changes no answer"),
    ("*WatchList*wants_compaction", r"^\+.*\+ self\._head", "nor does this"),
    (
        "*.partition.*recompute_high_watermark",
        r"in_sync and self\.log_end_offset < 0",
        "the rest finds nothing to raise",
    ),
    ("*Events*_apply_plain", r"^\+.*epoch not in \(", "what does not take the short way takes the long one"),
    ("*LiveSet*_remove_one", r"^\+.*found <= count", "callers stop at an id outside, so it is never equal"),
    ("*ProduceKind*_items_to_wait_for", r"^\+.*item -= 1", "a row that is seen twice takes the full check"),
    ("*PendingRanking*add", r"^\+.*<= self\._(oldest|soonest)_max", "which of equal ones is left out is not specified"),
    ("*.partition.*low_watermark", r"^\+.*log_start_offset <= lowest", "an equal offset becomes itself"),
    (
        "*Events*_apply_plain",
        r"^\+.*(-1 < (segment|position)|\+1 <= segment|segment < offset)",
        "what does not take the short way takes the long one",
    ),
    ("*Admission*admit_plain", r"^\+.*item_count >= self\._items_max", "as with events: the rest takes the long way"),
    ("*PositionIndex*fault", r"^\+.*segment > 0 and segment > offset", "0 is above no offset"),
    ("*SavedOperations*add_fetch", r"^\+.*2 if (read_committed|leader_only)", "whatever is not 0 is read as true"),
    ("*.partition.*raise_high_watermark", r"^\+.*offset < self\.high_watermark", "an equal offset becomes itself"),
    ("*.columns.*Column*__init__", r"^\+.*\[1\] \* count", "each value is assigned before it is read"),
    ("*DeleteRecordsKind*try_item", r"^\+.*partition_fault\(partition, -2\)", "any negative epoch is not compared"),
    ("*ProduceKind*begin_plain", r"^\+.*all_wait = None", "items are then evaluated a second time"),
    ("*Performer*_perform_on_all", r"^\+.*0 < self", "no deadline is as early as 0"),
    ("*", r"^\+.*cast\(", "a cast does nothing at run time"),
    ("*.marks.events.*", r"^\+.*(fetches_first=|_settle\(.*(True|False)\))", "the order of kinds is not specified"),
)
