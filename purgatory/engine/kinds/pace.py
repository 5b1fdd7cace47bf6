"""How fast a mark moved while an operation waited, and when it would have been reached: reported by an expired wait."""

from mypy_extensions import i64

from purgatory.engine.codes import OFFSET_MAX


def remaining_ms(mark_before: i64, mark_now: i64, required: i64, waited_ms: i64) -> int:
    """Milliseconds until `required` is reached at the pace from `mark_before` to `mark_now` in `waited_ms`.

    -1 if the mark did not move, or has reached `required`.
    """
    # Plain ints: the product of two offsets does not fit into 64 bits.
    moved: int = mark_now - mark_before
    if moved <= 0 or mark_now >= required:
        return -1
    missing: int = required - mark_now
    return min((missing * int(waited_ms) + moved - 1) // moved, OFFSET_MAX)


def pace_per_second(mark_before: i64, mark_now: i64, waited_ms: i64) -> float:
    """Mean pace of a mark over a wait, per second; -1.0 if it did not move."""
    if mark_now <= mark_before or waited_ms <= 0:
        return -1.0
    return float(int(mark_now - mark_before)) * 1000.0 / float(int(waited_ms))
