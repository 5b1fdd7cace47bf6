"""Adds to results which of their unreached marks are stale at the time the operation ends."""

from typing import Final

from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.service.sources.source_table import SourceTable

UNREPORTED: Final = "nothing was ever reported for this mark: no source feeds it, or its name is mistyped"


def note_stale_marks(completions: Completions, sources: SourceTable, now_ms: int) -> None:
    """For operations that just expired or failed: record how long, and why, their unreached marks have been stale."""
    found: dict[int, tuple[int, str]] = {}
    item = 0
    for row, outcome in enumerate(completions.outcomes):
        stop = item + completions.item_counts[row]
        if outcome in (codes.EXPIRED, codes.FAILED):
            # In a failed wait the stale marks have this code already (`StaleWaits.fail`); in an expired one the
            # unreached marks are looked up.
            not_reached = codes.MARK_STALE
            if outcome == codes.EXPIRED:
                not_reached = codes.NONE if completions.kinds[row] == codes.FETCH else codes.REQUEST_TIMED_OUT
            for place in range(item, stop):
                if completions.error_codes[place] == not_reached:
                    mark = sources.stale(completions.item_partitions[place], now_ms)
                    if mark is not None:
                        found[place] = mark.ms(now_ms), mark.reason
                    elif not_reached == codes.MARK_STALE:
                        found[place] = completions.waited_ms[row], UNREPORTED
        item = stop
    if found:
        completions.stale_marks = found
