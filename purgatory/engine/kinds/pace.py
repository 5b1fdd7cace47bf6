"""How fast a mark moved while an operation waited, and when it would have arrived: what an expired wait reports."""

from mypy_extensions import i64

from purgatory.engine.codes import OFFSET_MAX

__all__ = ["pace_per_second", "remaining_ms"]


def remaining_ms(mark_before: i64, mark_now: i64, required: i64, waited_ms: i64) -> int:
    """When `required` would be reached at the pace from `mark_before` to `mark_now` in `waited_ms`; -1: the mark stood
    still.
    """
    # Plain ints: the product of two offsets does not fit into 64 bits.
    moved: int = mark_now - mark_before
    if moved <= 0 or mark_now >= required:
        return -1
    missing: int = required - mark_now
    return min((missing * int(waited_ms) + moved - 1) // moved, OFFSET_MAX)


def pace_per_second(mark_before: i64, mark_now: i64, waited_ms: i64) -> float:
    """Mean pace of a mark over a wait; -1.0: it stood still."""
    if mark_now <= mark_before or waited_ms <= 0:
        return -1.0
    return float(int(mark_now - mark_before)) * 1000.0 / float(int(waited_ms))
