"""Which marks nobody can see now, as results say it: asked at the moment when an operation ends."""

from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.service.sources.source_table import SourceTable


def note_stale_marks(completions: Completions, sources: SourceTable, now_ms: int) -> None:
    """Says of operations that have just expired, or failed because they were blind, which of the marks that they did
    not see reached are stale.
    """
    found: dict[int, tuple[int, str]] = {}
    item = 0
    for row, outcome in enumerate(completions.outcomes):
        stop = item + completions.item_counts[row]
        if outcome in (codes.EXPIRED, codes.FAILED):
            not_reached = codes.MARK_STALE
            if outcome == codes.EXPIRED:
                not_reached = codes.NONE if completions.kinds[row] == codes.FETCH else codes.REQUEST_TIMED_OUT
            for place in range(item, stop):
                if completions.error_codes[place] == not_reached:
                    mark = sources.stale(completions.item_partitions[place], now_ms)
                    if mark is not None:
                        found[place] = mark.ms(now_ms), mark.reason
        item = stop
    if found:
        completions.stale_marks = found
